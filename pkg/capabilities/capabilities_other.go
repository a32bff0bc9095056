// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package capabilities

import "errors"

// missing returns all of needs: only Linux has capabilities.
func missing(needs []Capability) (names []string) {
	for _, need := range needs {
		names = append(names, string(need))
	}
	return names
}

func drop([]Capability) error { return errors.ErrUnsupported }
