// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
)

// text is an error's, empty for none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestReadyWithLease(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		stats intercept.Stats
		want  string
	}{
		{"held", intercept.Stats{Renewals: 7}, ""},
		{"held for one family, the other never", intercept.Stats{Renewals: 7, NotHeldFor: time.Hour}, ""},
		{"never held", intercept.Stats{NotHeldFor: time.Second, NoneHeldFor: time.Second}, "no lease is held"},
		{"lost a moment ago", intercept.Stats{Renewals: 7, NotHeldFor: 29 * time.Second, NoneHeldFor: 29 * time.Second}, ""},
		{"lost for long", intercept.Stats{Renewals: 7, NotHeldFor: 31 * time.Second, NoneHeldFor: 31 * time.Second}, "no lease has been held for 31s"},
		{"given up", intercept.Stats{Renewals: 7, NotHeldFor: time.Second, NoneHeldFor: time.Second, Released: true}, "the leases are released"},
		{"a newer agent", intercept.Stats{Renewals: 7, StoodDown: true, NewOwner: "416155b7"}, "the newer agent 416155b7 receives the node's queries"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "got", tt.want, text(leaseError(tt.stats)))
		})
	}
}

func TestReadyWithLink(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		stats netif.Stats
		want  string
	}{
		{"at first", netif.Stats{}, "no listen address is on a link: starting"},
		{"failing", netif.Stats{LastError: "no right"}, "no listen address is on a link: no right"},
		{"one of two", netif.Stats{Held: []netip.Addr{netip.IPv6Loopback()}, LastError: "no IPv4"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "got", tt.want, text(linkError(tt.stats)))
		})
	}
}
