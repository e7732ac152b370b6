#!/usr/bin/env bash
# publish.sh FOLDER REGISTRY/PATH: push the images and the chart of a release, and sign them by the identity of the
# workflow (cosign). REGISTRY_USER and REGISTRY_TOKEN log in; it needs skopeo, docker buildx, helm and cosign.
set -euo pipefail
folder=$1 prefix=$2
registry=${prefix%%/*}
chart=("$folder"/devalloc-chart-*.tgz)
version=${chart[0]##*devalloc-chart-}
version=${version%.tgz}
[ -f "${chart[0]}" ] || { echo "publish.sh: $folder holds no release" >&2; exit 2; }
(cd "$folder" && sha256sum --check --quiet SHA256SUMS)
skopeo login --username "$REGISTRY_USER" --password-stdin "$registry" <<< "$REGISTRY_TOKEN"
docker login --username "$REGISTRY_USER" --password-stdin "$registry" <<< "$REGISTRY_TOKEN"
helm registry login --username "$REGISTRY_USER" --password-stdin "$registry" <<< "$REGISTRY_TOKEN"
for image in devalloc-controller devalloc-node; do
  reference="$prefix/$image:$version"
  for arch in amd64 arm64; do
    skopeo copy "oci-archive:$folder/$image-$version-$arch.tar" "docker://$reference-$arch"
  done
  docker buildx imagetools create --tag "$reference" "$reference-amd64" "$reference-arm64"
  digest=$(skopeo inspect --raw "docker://$reference" | sha256sum | cut --delimiter=' ' --fields=1)
  cosign sign --yes --recursive "$prefix/$image@sha256:$digest"
  for arch in amd64 arm64; do
    cosign attest --yes --type cyclonedx --predicate "$folder/$image-$version-$arch.cdx.json" "$reference-$arch"
  done
done
helm push "${chart[0]}" "oci://$prefix/charts"
