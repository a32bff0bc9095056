// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxBytes bounds a file. A ConfigMap holds no more.
const maxBytes = 1 << 20

// Parse reads the text of a configuration. The error is an [*Error] with every
// problem of it. Paths that are relative in the text stay so.
func Parse(data []byte, role Role) (Config, error) {
	return parseFile("", data, role)
}

// Load reads the configuration in a file. Relative paths in it begin at its
// folder, and files of certificates must be there. The error is an [*Error], or
// wraps the one of the operating system when the file cannot be read.
func Load(path string, role Role) (Config, error) {
	data, err := readFile(path)
	if err != nil {
		return Config{}, err
	}
	return parseFile(path, data, role)
}

// ParseAs is Load for a text that is in no file: name stands for the path in errors, and relative paths begin at folder.
func ParseAs(name, folder string, data []byte, role Role) (Config, error) {
	c, err := parseFile(filepath.Join(folder, "-"), data, role)
	if bad := (*Error)(nil); errors.As(err, &bad) {
		bad.Path = name
	}
	return c, err
}

// parseFile is Parse, with the path of the file for the error.
func parseFile(path string, data []byte, role Role) (Config, error) {
	r := &report{}
	c := Default(role)
	c.inherit()
	if root, ok := readDocument(data, r); ok {
		root.fields(configFields(&c))
		c.settle(r)
		checkRules(&c, role, r)
		if path != "" {
			if err := resolveLocations(&c, path); err != nil {
				return Config{}, err
			}
			checkFiles(&c, r)
		}
	}
	if err := r.err(path); err != nil {
		return Config{}, err
	}
	return c, nil
}

// readFile reads at most one byte more than a configuration may have.
func readFile(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return data, nil
}
