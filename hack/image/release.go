// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// addRelease adds to an image's files what else a release has.
func (o *options) addRelease(ctx context.Context, files tree, references string) error {
	add := func(name string, data []byte, err error) error {
		files[name] = node{data: data}
		return err
	}
	chart, err := o.addChart(files)
	if err != nil {
		return err
	}
	references += chart + "\n"
	pages, err := o.manPages(ctx)
	if err := add("node-cache-man.tar.gz", pages, err); err != nil {
		return err
	}
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/arm64"} {
		plugin, err := o.plugin(ctx, platform)
		if err := add("kubectl-node_cache-"+strings.ReplaceAll(platform, "/", "-")+".tar.gz", plugin, err); err != nil {
			return fmt.Errorf("packing the plugin for %s: %w", platform, err)
		}
	}
	for name, folder := range map[string]string{"install": "base", "install-transparent": "overlays/transparent", "uninstall": "uninstall"} {
		rendered, err := o.render(folder)
		if err := add(name+".yaml", rendered, err); err != nil {
			return err
		}
	}
	try, err := os.ReadFile(filepath.Join(o.root, "examples", "try.yaml"))
	if err := add("try.yaml", try, err); err != nil {
		return fmt.Errorf("reading the test pod: %w", err)
	}
	notes, err := o.notes(references)
	if err := add("notes.md", notes, err); err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name].data), name)
	}
	files["SHA256SUMS"] = node{data: sums.Bytes()}
	if o.signer == nil {
		return nil
	}
	signature, err := o.signer.file(sums.Bytes())
	return add("SHA256SUMS.sigstore.json", signature, err)
}

// plugin packs the kubectl plugin with its licences.
func (o *options) plugin(ctx context.Context, platform string) ([]byte, error) {
	b, err := compile(ctx, o, platform, "kubectl-node_cache")
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
	files := tree{b.program: {data: b.data, mode: 0o755}}
	for name, data := range licenceFiles(own, parts) {
		files[name] = node{data: data, mode: 0o644}
	}
	return o.pack(files)
}

// manPages packs the manual pages, which a test of the program writes.
func (o *options) manPages(ctx context.Context) ([]byte, error) {
	folder, err := os.MkdirTemp("", "node-cache-man-")
	if err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := os.Setenv("SOURCE_DATE_EPOCH", strconv.FormatInt(o.created.Unix(), 10)); err != nil {
		return nil, fmt.Errorf("setting the date of the manual pages: %w", err)
	}
	_, err = goCommand(ctx, o.root, "linux/"+runtime.GOARCH, "test", "-buildvcs=false", "-trimpath", "-count=1", "-run=^TestManPages$", "./cmd/node-cache", "-args", "-man="+folder)
	if err != nil {
		return nil, err
	}
	pages, err := readTree(folder, "man1")
	if err != nil {
		return nil, err
	}
	return o.pack(pages)
}

// pack returns the files as a compressed tar archive.
func (o *options) pack(files tree) ([]byte, error) {
	data, err := files.tar(o.created)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(data); err != nil {
		return nil, fmt.Errorf("packing an archive: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing an archive: %w", err)
	}
	return packed.Bytes(), nil
}

// render renders a folder of daemonset with this version's image.
func (o *options) render(folder string) ([]byte, error) {
	files, err := readTree(filepath.Join(o.root, "daemonset"), "/daemonset")
	if err != nil {
		return nil, err
	}
	const own = "resources: [../daemonset/%s]\nimages: [{name: %q, newName: %q, newTag: %q}]\n"
	files["/release/kustomization.yaml"] = node{data: fmt.Appendf(nil, own, folder, imageName, o.name, o.version)}
	memory := filesys.MakeFsInMemory()
	for name, n := range files {
		if err := memory.WriteFile(name, n.data); err != nil {
			return nil, fmt.Errorf("copying the manifests: %w", err)
		}
	}
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(memory, "/release")
	if err != nil {
		return nil, fmt.Errorf("rendering daemonset/%s: %w", folder, err)
	}
	return rendered.AsYaml()
}

// notes are the section of this version in the changelog. A version without one, as before it is dated, has what is unreleased.
func (o *options) notes(references string) ([]byte, error) {
	changelog, err := os.ReadFile(filepath.Join(o.root, "CHANGELOG.md"))
	if err != nil {
		return nil, fmt.Errorf("reading the changelog: %w", err)
	}
	_, section, found := strings.Cut(string(changelog), "\n## "+o.version+" - ")
	if !found {
		_, section, found = strings.Cut(string(changelog), "\n## Unreleased")
	}
	if !found {
		return nil, fmt.Errorf("reading the changelog: no section %s and no section Unreleased", o.version)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	date, section, _ := strings.Cut(section, "\n")
	section = strings.ReplaceAll(section, "](docs/", "]("+source+"/blob/"+o.version+"/docs/") // a release's page has no folder
	title := strings.TrimSuffix(o.version+" - "+date, " - ")
	return fmt.Appendf(nil, "# node-cache %s\n\n```\n%s```\n%s\n", title, references, section), nil
}
