# SPDX-License-Identifier: Apache-2.0
# The image, for a build with a container engine. `make image` builds it without one.
#
#   docker build --build-arg VERSION=v0.7.0 -t node-cache .                      from scratch, the default
#   docker build --build-arg VERSION=v0.7.0 -t node-cache --target iptables .    with iptables and ipset
#
# Only intercept.backend: iptables needs the second one. The nftables backend needs no programs.

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY hack/image ./hack/image
# The certificates come from a Go module, as in the image of `make image`.
RUN mkdir -p /out/etc/ssl/certs && cd hack/image && CGO_ENABLED=0 go run . roots >/out/etc/ssl/certs/ca-certificates.crt
COPY cmd ./cmd
COPY pkg ./pkg
COPY LICENSE /out/licenses/LICENSE
ARG TARGETOS=linux TARGETARCH VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/node-cache ./cmd/node-cache

FROM debian:bookworm-slim AS iptables
RUN apt-get update && apt-get install -y --no-install-recommends iptables ipset && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ /
ENTRYPOINT ["/node-cache"]

# No USER: without ambient capabilities only root keeps NET_ADMIN when the program starts. The manifests drop all other
# capabilities except NET_BIND_SERVICE, and the agent drops those that it no longer needs.
FROM scratch
COPY --from=build /out/ /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/node-cache"]
