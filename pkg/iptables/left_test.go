// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestLeft: Left is right before the first Apply, after it and after a Remove.
func TestLeft(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			hosts, b := openNode(t, v)
			left := func() (there bool) {
				t.Helper()
				assert.NoError(t, hosts.Node.Do(func() (err error) {
					there, err = Left()
					return err
				}))
				return there
			}
			if left() {
				t.Error("there are rules on a new node")
			}
			assert.NoError(t, b.Prepare(t.Context(), linkLocal()))
			if !left() {
				t.Error("the sets that were prepared are not seen")
			}
			apply(t, b, linkLocal())
			if !left() {
				t.Error("the rules that were applied are not seen")
			}
			assert.NoError(t, b.Remove(t.Context(), ""))
			if left() {
				t.Error("there are rules after their removal")
			}
		})
	}
}
