// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A pool is without hope while each of its upstreams fails, until a probe is answered.
func TestPoolAllDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := newHarness()
		p := lab.pool(t, endpoints(list(addrA), list(addrL)))
		var got []bool
		note := func() { got = append(got, p.AllDown()) }
		note() // nobody was asked yet
		ask(t, p)
		note()
		lab.end(addrA)
		ask(t, p)
		note() // the last resort answers
		lab.end(addrL)
		ask(t, p)
		note()
		time.Sleep(6 * time.Second)
		note() // the probes are in vain
		lab.set(addrA, healthy("192.0.2.10"), nil)
		time.Sleep(time.Second)
		note()
		if diff := cmp.Diff([]bool{false, false, false, true, true, false}, got); diff != "" {
			t.Errorf("hopeless (-want +got):\n%s", diff)
		}
	})
}
