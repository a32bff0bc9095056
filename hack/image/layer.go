// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// rootsFile is where Go, OpenSSL and most others look for certificates.
const rootsFile = "etc/ssl/certs/ca-certificates.crt"

// tree is what an archive holds, by path. Folders above are made as they are needed.
type tree map[string]node

// node is a file, or a symbolic link if target is set.
type node struct {
	data   []byte
	mode   int64
	target string
}

// layer makes a layer of a tree. Everything in it belongs to root and has the given time.
func (t tree) layer(when time.Time) (v1.Layer, error) {
	data, err := t.tar(when)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching) // else each reader compresses it again
	if err != nil {
		return nil, fmt.Errorf("making a layer: %w", err)
	}
	return layer, nil
}

// tar writes the tree in the order of its paths.
func (t tree) tar(when time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range t.names() {
		n, file := t[strings.TrimSuffix(name, "/")]
		h := &tar.Header{Name: name, Mode: n.mode, ModTime: when, Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Size: int64(len(n.data))}
		switch {
		case !file:
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		case n.target != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, n.target, 0o777
		}
		if len(name) > 100 {
			h.Format = tar.FormatPAX
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("writing %s to an archive: %w", name, err)
		}
		if _, err := w.Write(n.data); err != nil {
			return nil, fmt.Errorf("writing %s to an archive: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("ending an archive: %w", err)
	}
	return out.Bytes(), nil
}

// names lists files, and the folders above them with a slash at their end.
func (t tree) names() []string {
	seen := map[string]bool{}
	var all []string
	for name := range t {
		all = append(all, name)
		for folder := path.Dir(name); folder != "." && !seen[folder]; folder = path.Dir(folder) {
			seen[folder] = true
			all = append(all, folder+"/")
		}
	}
	slices.Sort(all)
	return all
}
