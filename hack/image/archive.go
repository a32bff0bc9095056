// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeArchive writes index, variants and bills of materials as a tar archive in the OCI image layout.
func writeArchive(file string, o *options, index v1.ImageIndex, variants []variant) error {
	folder, err := os.MkdirTemp("", "node-cache-layout-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := writeLayout(folder, o, index, variants); err != nil {
		return fmt.Errorf("writing the image layout: %w", err)
	}
	files := tree{}
	err = fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(folder, name))
		files[name] = node{data: data, mode: 0o644}
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the image layout: %w", err)
	}
	data, err := files.tar(o.created)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// writeLayout fills a folder. The named entry is the image; the others are attachments, which their subjects make known.
func writeLayout(folder string, o *options, index v1.ImageIndex, variants []variant) error {
	to, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	// containerd takes the whole name from the first annotation, other programs a tag from the second.
	names := map[string]string{
		"io.containerd.image.name":          o.name + ":" + o.tag(),
		"org.opencontainers.image.ref.name": o.tag(),
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	for _, v := range variants {
		if err := attach(to, o, &v); err != nil {
			return err
		}
	}
	return nil
}
