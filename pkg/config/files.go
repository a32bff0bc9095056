// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// maxCertificates bounds a file of certificates. All that a system trusts take a quarter of it.
const maxCertificates = 1 << 20

// checkFiles reports the files that c names and that are not what they should be.
func checkFiles(d *decoder, c *Config) {
	for i, route := range c.Forward {
		key := fmt.Sprintf("forward[%d].tls.ca", i)
		if route.CA == "" || !d.clean(key) {
			continue
		}
		if p := certificatesProblem(route.CA); p != nil {
			d.rejectText(key, route.CA, p)
		}
	}
}

// certificatesProblem says why a file is none of certificates.
func certificatesProblem(path string) *Problem {
	rest, err := filewatch.ReadFile(path, maxCertificates)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // without the path
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return problem(err.Error(), "name a file that this user can read")
	case err != nil:
		return problem(err.Error(), "")
	}
	for n := 0; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && n == 0:
			return problem("no certificate in it", "it begins with -----BEGIN CERTIFICATE-----")
		case block == nil:
			return nil
		case block.Type != "CERTIFICATE":
			continue
		}
		n++
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return problem(fmt.Sprintf("certificate %d: %v", n, err), "")
		}
	}
}

// resolveLocations makes the relative paths in c absolute: they begin at the folder of the configuration file.
func resolveLocations(c *Config, file string) error {
	paths := make([]*string, 0, 3+len(c.Forward)+len(c.Hosts.Files))
	paths = append(paths, &c.Cluster.Kubeconfig, &c.Cluster.Manifests, &c.Snapshot.Folder)
	for i := range c.Hosts.Files {
		paths = append(paths, &c.Hosts.Files[i])
	}
	for i := range c.Forward {
		paths = append(paths, &c.Forward[i].CA)
	}
	for _, p := range paths {
		if *p == "" || filepath.IsAbs(*p) {
			continue
		}
		abs, err := filepath.Abs(filepath.Join(filepath.Dir(file), *p))
		if err != nil {
			return fmt.Errorf("resolving %s: %w", *p, err)
		}
		*p = abs
	}
	var files []string // one may have been written in two ways
	for _, f := range c.Hosts.Files {
		if !slices.Contains(files, f) {
			files = append(files, f)
		}
	}
	c.Hosts.Files = files
	return nil
}
