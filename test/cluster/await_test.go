// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"
)

// await asks again and again until the condition holds. If it does not in time, the test fails and says why.
func await(t *testing.T, what string, condition func() bool, why ...func() string) {
	t.Helper()
	const limit = time.Minute
	for deadline := time.Now().Add(limit); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, w := range why {
				t.Log(w())
			}
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
