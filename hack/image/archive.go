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
	out, err := os.CreateTemp(filepath.Dir(file), ".image-")
	if err != nil {
		return fmt.Errorf("making the archive: %w", err)
	}
	defer func() { _ = os.Remove(out.Name()) }() // nothing is there once it has its name
	if err := errors.Join(writeTar(out, folder, o), out.Chmod(0o644), out.Close()); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	return os.Rename(out.Name(), file)
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

// writeTar packs the folder's files in the order of their names.
func writeTar(out io.Writer, folder string, o *options) error {
	w := tar.NewWriter(out)
	err := fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		h := &tar.Header{Name: name, Mode: 0o644, ModTime: o.created, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if d.IsDir() {
			h.Name, h.Mode, h.Typeflag = name+"/", 0o755, tar.TypeDir
			return w.WriteHeader(h)
		}
		data, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(path.Clean(name))))
		if err != nil {
			return err
		}
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
