// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package rights

import "errors"

// missing is all of needs: capabilities are Linux's.
func missing(needs []Right) (names []string) {
	for _, need := range needs {
		names = append(names, string(need))
	}
	return names
}

func drop([]Right) error { return errors.ErrUnsupported }
