// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// location reads the path of a file or a folder. The empty string is none.
func location(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		switch {
		case !ok:
		case strings.ContainsRune(text, 0):
			n.reject("not a path", "")
		case text == "":
			*dst = ""
		default:
			*dst = filepath.Clean(text)
		}
	}
}

// maxSocketPath bounds the path of a unix socket: unix(7) has 108 bytes for it with a zero at its end.
const maxSocketPath = 107

// socketPath reads the path of a unix socket. It is not taken as relative to the
// configuration file: other programs must know it as it is written. The empty string is none.
func socketPath(dst *string, example string) func(node) {
	hint := "write it like " + example
	return func(n node) {
		text, ok := n.stringOnly()
		switch {
		case !ok:
		case strings.ContainsRune(text, 0), strings.HasSuffix(text, "/"):
			n.reject("not the path of a socket", hint)
		case text == "":
			*dst = ""
		case !filepath.IsAbs(text):
			n.reject("not an absolute path", hint)
		case len(filepath.Clean(text)) > maxSocketPath:
			n.reject(fmt.Sprintf("longer than %d bytes, which the path of a socket cannot be", maxSocketPath), "")
		default:
			*dst = filepath.Clean(text)
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
	c.Hosts.Files = distinct(c.Hosts.Files) // one may have been written in two ways
	return nil
}
