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

// resolveLocations makes the relative paths in c absolute: they begin at the folder of the configuration file.
func resolveLocations(c *Config, file string) error {
	paths := make([]*string, 0, 2+len(c.Forward))
	paths = append(paths, &c.Cluster.Kubeconfig, &c.Cluster.Manifests)
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
	return nil
}
