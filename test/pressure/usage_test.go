// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// cpu is the processor time that the agent has taken.
func (a *agent) cpu(t *testing.T) time.Duration {
	t.Helper()
	used, err := proctest.UsageOf(a.PID())
	if err != nil {
		t.Fatal(err)
	}
	return used.CPU
}
