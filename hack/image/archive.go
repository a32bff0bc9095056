// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// refName is the annotation of an entry of an image layout that has its tag.
const refName = "org.opencontainers.image.ref.name"

// makeArchive makes a tar archive in the OCI image layout of an image's index or a chart, with its names, and its attachments.
func makeArchive(o *options, of mutate.Appendable, names map[string]string, attached []v1.Image) ([]byte, error) {
	folder, err := os.MkdirTemp("", "node-cache-layout-")
	if err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := writeLayout(folder, of, names, attached); err != nil {
		return nil, fmt.Errorf("writing the image layout: %w", err)
	}
	files, err := readTree(folder, "")
	if err != nil {
		return nil, err
	}
	return files.tar(o.created)
}

// writeLayout fills a folder. The first entry is the image or the chart; the others are attachments, which their subjects make known.
func writeLayout(folder string, of mutate.Appendable, names map[string]string, attached []v1.Image) error {
	to, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	switch of := of.(type) {
	case v1.ImageIndex:
		err = to.AppendIndex(of, layout.WithAnnotations(names))
	case v1.Image:
		err = to.AppendImage(of, layout.WithAnnotations(names))
	}
	if err != nil {
		return err
	}
	for _, artifact := range attached {
		if err := to.AppendImage(artifact); err != nil {
			return err
		}
	}
	return nil
}

// readTree reads the files of a folder, under names that begin with prefix.
func readTree(folder, prefix string) (tree, error) {
	t := tree{}
	from := os.DirFS(folder)
	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(from, name)
		t[path.Join(prefix, name)] = node{data: data, mode: 0o644}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", folder, err)
	}
	return t, nil
}

// write writes the files into a folder.
func (t tree) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making the folder: %w", err)
	}
	for name, n := range t {
		if err := os.WriteFile(filepath.Join(folder, name), n.data, 0o644); err != nil {
			return fmt.Errorf("writing to the folder: %w", err)
		}
	}
	return nil
}

// extract writes the files of an archive into a folder, and none outside of it.
func extract(archive, folder string) error {
	from, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("opening the archive: %w", err)
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("opening a folder: %w", err)
	}
	defer func() { _ = to.Close() }()
	return eachEntry(from, func(h *tar.Header, content io.Reader) error {
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		if err := to.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return err
		}
		file, err := to.Create(h.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	})
}

// eachEntry calls visit for each entry of a tar archive.
func eachEntry(archive io.Reader, visit func(*tar.Header, io.Reader) error) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = visit(h, r)
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
	}
}
