"""Tables of facts about the scaling protocols: each module knows some forms of tables and judges devalloc by them."""
