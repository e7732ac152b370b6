"""Operations on the claims and machines of this node, and the state that they need."""
