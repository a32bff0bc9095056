// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"strings"
)

// check says what is wrong with a target that is an address. The authorities must be readable: a typing error in the
// path is not to be found out by the first query.
func (t Target) check() error {
	if !t.Addr.IsValid() || t.Addr.Port() == 0 {
		return fmt.Errorf("address %q: %w", t.Addr, ErrNoUpstream)
	}
	secure, web := t.Name != "" || t.CAFile != "", t.Path != "" || t.Method != ""
	switch t.Network {
	case "udp", "tcp":
		if secure || web {
			return fmt.Errorf("name, authorities, path or method with network %q: %w", t.Network, errors.ErrUnsupported)
		}
	case "tls":
		if web {
			return fmt.Errorf("path or method with network %q: %w", t.Network, errors.ErrUnsupported)
		}
	case "https":
		if err := t.checkHTTPS(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("network %q: %w", t.Network, errors.ErrUnsupported)
	}
	if t.CAFile == "" {
		return nil
	}
	_, err := readCAFile(t.CAFile)
	return err
}

// checkWeb looks at what only HTTPS has.
func (t Target) checkHTTPS() error {
	if t.Method != "" && t.Method != "GET" && t.Method != "POST" {
		return fmt.Errorf("method %q: %w", t.Method, errors.ErrUnsupported)
	}
	if t.Path != "" && (!strings.HasPrefix(t.Path, "/") || strings.ContainsAny(t.Path, "?# ")) {
		return fmt.Errorf("path %q: not a path from the root, without a query", t.Path)
	}
	return nil
}
