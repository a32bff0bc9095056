// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// architectures lists what the image is built for.
func architectures() []string { return []string{"amd64", "arm64"} }

// variant is the image of one architecture, and its bill of materials.
type variant struct {
	arch  string
	image v1.Image
	bill  []byte
}

// build makes the archive, the bills of materials and the provenance, and returns the image's reference by digest.
func build(ctx context.Context, o *options, files tree) (string, error) {
	base := "node-cache-" + o.tag()
	var variants []variant
	var attached []v1.Image
	for _, arch := range architectures() {
		v, err := buildVariant(ctx, o, arch)
		if err != nil {
			return "", fmt.Errorf("building for %s: %w", arch, err)
		}
		bill, err := o.attach(v.image, bomType, v.bill, nil)
		if err != nil {
			return "", err
		}
		variants, attached = append(variants, *v), append(attached, bill)
		files[base+"-linux-"+arch+".cdx.json"] = node{data: v.bill}
	}
	index, err := makeIndex(o, variants)
	if err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("computing the digest: %w", err)
	}
	provenance, statements, err := o.attest(index, o.name, map[string]any{"iptables": o.iptables})
	if err != nil {
		return "", err
	}
	// containerd takes the whole name from the first annotation, other programs a tag from the second.
	names := map[string]string{"io.containerd.image.name": o.name + ":" + o.tag(), refName: o.tag()}
	archive, err := makeArchive(o, index, names, append(attached, statements...))
	if err != nil {
		return "", err
	}
	files[base+".intoto.json"] = node{data: provenance}
	files[base+".oci.tar"] = node{data: archive}
	return fmt.Sprintf("%s:%s@%s", o.name, o.tag(), digest), nil
}

// program is what both images have of one architecture.
type program struct {
	*binary
	parts  []part
	layers []v1.Layer // the certificates and licences, then the binary, which changes with every release
}

// program compiles the program and packs it, once for both images.
func (o *options) program(ctx context.Context, arch string) (*program, error) {
	if p := o.programs[arch]; p != nil {
		return p, nil
	}
	b, err := compile(ctx, o, "linux/"+arch, "node-cache")
	if err != nil {
		return nil, err
	}
	parts, err := b.parts()
	if err != nil {
		return nil, err
	}
	own, err := readLicence(o.root)
	if err != nil {
		return nil, err
	}
	var roots bytes.Buffer
	if err := writeRoots(&roots); err != nil {
		return nil, err
	}
	base := tree{rootsFile: {data: roots.Bytes(), mode: 0o644}}
	for name, data := range licenceFiles(own, parts) {
		base[name] = node{data: data, mode: 0o644}
	}
	p := &program{binary: b, parts: parts}
	for _, t := range []tree{base, {"node-cache": {data: b.data, mode: 0o755}}} {
		layer, err := t.layer(o.created)
		if err != nil {
			return nil, err
		}
		p.layers = append(p.layers, layer)
	}
	o.programs[arch] = p
	return p, nil
}

// buildVariant makes the image of one architecture.
func buildVariant(ctx context.Context, o *options, arch string) (*variant, error) {
	p, err := o.program(ctx, arch)
	if err != nil {
		return nil, err
	}
	layers, packages := p.layers, []debianPackage(nil)
	if o.iptables {
		var debian tree
		if debian, packages, err = debianTree(ctx, arch); err != nil {
			return nil, err
		}
		below, err := debian.layer(o.created)
		if err != nil {
			return nil, err
		}
		layers = append([]v1.Layer{below}, layers...)
	}
	bill, err := p.bill(o, p.parts, packages)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	for _, layer := range layers {
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "hack/image"}}); err != nil {
			return nil, fmt.Errorf("adding a layer: %w", err)
		}
	}
	if image, err = configure(o, arch, image); err != nil {
		return nil, err
	}
	return &variant{arch: arch, image: image, bill: bill}, nil
}

// configure says how the image is run. It names no user: without ambient capabilities only root keeps NET_ADMIN through
// the start of the program, and the manifests take every other right from it.
func configure(o *options, arch string, image v1.Image) (v1.Image, error) {
	old, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the image's configuration: %w", err)
	}
	config := old.DeepCopy()
	config.Architecture, config.OS, config.Created = arch, "linux", v1.Time{Time: o.created}
	config.Config = v1.Config{
		Entrypoint: []string{"/node-cache"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		WorkingDir: "/",
		Labels:     labels(o),
	}
	out, err := mutate.ConfigFile(image, config)
	if err != nil {
		return nil, fmt.Errorf("writing the image's configuration: %w", err)
	}
	return mutate.Annotations(out, labels(o)).(v1.Image), nil
}

// labels describe the image, in its configuration and as annotations of its manifests.
func labels(o *options) map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":         "node-cache",
		"org.opencontainers.image.description":   "DNS cache for the pods of a Kubernetes node",
		"org.opencontainers.image.version":       o.tag(),
		"org.opencontainers.image.created":       o.created.Format(time.RFC3339),
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.source":        source,
		"org.opencontainers.image.url":           source,
		"org.opencontainers.image.documentation": source + "/tree/main/docs",
		"org.opencontainers.image.vendor":        "node-cache",
	}
	if o.revision != "" {
		all["org.opencontainers.image.revision"] = o.revision
	}
	return all
}

// makeIndex makes the list of architectures that the image's name stands for.
func makeIndex(o *options, variants []variant) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, v := range variants {
		descriptor, err := partial.Descriptor(v.image)
		if err != nil {
			return nil, fmt.Errorf("describing the image: %w", err)
		}
		platform := &v1.Platform{OS: "linux", Architecture: v.arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: v.image, Descriptor: v1.Descriptor{
			MediaType: descriptor.MediaType, Digest: descriptor.Digest, Size: descriptor.Size, Platform: platform,
		}})
	}
	notes := labels(o)
	if own, ok := debug.ReadBuildInfo(); ok {
		notes["io.github.nodecache.image.builder"] = own.GoVersion
	}
	return mutate.Annotations(index, maps.Clone(notes)).(v1.ImageIndex), nil
}
