// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
)

// TestPrefix finds the labels before the first suffix, of names that a resolver asks for first.
func TestPrefix(t *testing.T) {
	t.Parallel()
	x := pods.NewIndex(time.Minute, &pods.Host{Domain: "test"})
	p := &pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{podAddr(1)}, DNS: pods.DNS{Ndots: 2}}
	x.Put(p)
	const suffix = "\x04shop\x03svc\x04test\x00"
	for _, tt := range []struct{ name, want string }{
		{"\x03www" + suffix, "\x03www"},
		{"\x01a\x02bc" + suffix, "\x01a\x02bc"},
		{"\x01a\x01b\x01c" + suffix, ""}, // ndots
		{suffix, ""},
		{"\x03www\x04shop\x03svc\x05other\x00", ""},
		{"\x08www" + suffix, ""}, // the first label has the beginning of the suffix
	} {
		assert.Same(t, tt.name, tt.want, string(p.SearchPath().Prefix([]byte(tt.name))))
	}
}
