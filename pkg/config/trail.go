// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"strings"
)

// maxLinks bounds the links of one path, as the kernel does.
const maxLinks = 40

// step is a place on the way to a file where a change leads to another file.
type step struct {
	folder string // holds no link in its path
	name   string // in the folder: a link, the file itself, or the first thing that is missing
}

func (s step) path() string { return filepath.Join(s.folder, s.name) }

// trail walks an absolute path as the kernel does and returns where it can be
// redirected: each link, and the end. For a ConfigMap these are the link config.yaml,
// the link ..data, both in the mounted folder, and the file in the folder of its version.
func trail(path string) []step {
	var steps []step
	folder, rest := "/", elements(path)
	for links := 0; len(rest) > 0; {
		at := step{folder: folder, name: rest[0]}
		rest = rest[1:]
		if at.name == ".." {
			folder = filepath.Dir(folder) // right, because folder holds no link
			continue
		}
		info, err := os.Lstat(at.path())
		switch {
		case err != nil:
			return append(steps, at)
		case info.Mode()&os.ModeSymlink != 0:
			links++
			to, err := os.Readlink(at.path())
			steps = append(steps, at)
			if err != nil || links > maxLinks {
				return steps
			}
			if filepath.IsAbs(to) {
				folder = "/"
			}
			rest = append(elements(to), rest...)
		case len(rest) == 0:
			return append(steps, at)
		default:
			folder = at.path()
		}
	}
	return steps
}

// elements splits a path at its slashes. It keeps "..", which means another folder once links are resolved.
func elements(path string) []string {
	var list []string
	for e := range strings.SplitSeq(path, "/") {
		if e != "" && e != "." {
			list = append(list, e)
		}
	}
	return list
}
