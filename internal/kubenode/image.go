// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// An Image is a container's files, made without an engine.
type Image struct {
	Name       string            // with its tag, as pods name it
	Files      map[string]string // path in the image, without its first slash: path on this machine, or "-> TARGET" for a link
	Entrypoint []string
}

// Archive writes the image as a file that containerd imports, in the format of docker save.
func (i Image) Archive(to string) error {
	layer, err := i.layer()
	if err != nil {
		return fmt.Errorf("making image %s: %w", i.Name, err)
	}
	type object = map[string]any
	config, err1 := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	manifest, err2 := json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{i.Name}, "Layers": []string{"layer.tar"}}})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err = errors.Join(err1, err2,
		addFile(w, "layer.tar", 0o644, layer), addFile(w, "config.json", 0o644, config), addFile(w, "manifest.json", 0o644, manifest),
		w.Close())
	if err == nil {
		err = os.WriteFile(to, b.Bytes(), 0o644)
	}
	if err != nil {
		return fmt.Errorf("making image %s: %w", i.Name, err)
	}
	return nil
}

// layer is a tar archive of the files and the folders they are in, and of /tmp.
func (i Image) layer() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	folders := map[string]bool{"tmp": true, "etc": true}
	for name := range i.Files {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	for _, name := range sorted(folders) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, name := range sorted(i.Files) {
		if err := addSource(w, name, i.Files[name]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// addSource adds what a source in Files says.
func addSource(w *tar.Writer, name, source string) error {
	if target, is := strings.CutPrefix(source, "-> "); is {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target})
	}
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return addFile(w, name, 0o755, content)
}

func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

func sorted[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
