// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestLoopName(t *testing.T) {
	t.Parallel()
	const head = "000102030405060708090a0b0c0d0e0f.loop.node-cache."
	for _, tt := range []struct {
		name, zone, want string // an empty want: no name
	}{
		{name: "the root", zone: ".", want: head},
		{name: "a zone", zone: "cluster.local.", want: head + "cluster.local."},
		{name: "the longest zone", zone: strings.Repeat("a.", 101) + "bb.", want: head + strings.Repeat("a.", 101) + "bb."},
		{name: "a zone too long", zone: strings.Repeat("a.", 102) + "b."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var nonce [wire.LoopNonce]byte
			for i := range nonce {
				nonce[i] = byte(i)
			}
			got := wire.AppendLoopName(nil, nonce, packed(t, tt.zone))
			if tt.want == "" {
				if len(got) > 0 {
					t.Errorf("got %x, want no name", got)
				}
				return
			}
			text, end, err := dns.UnpackDomainName(got, 0)
			if err != nil || end != len(got) || text != tt.want {
				t.Fatalf("got %q, %d of %d bytes, error %v, want %q", text, end, len(got), err, tt.want)
			}
			if !wire.IsLoopName(got) {
				t.Error("not known for what it is")
			}
		})
	}
}

func TestIsLoopName(t *testing.T) {
	t.Parallel()
	const nonce = "000102030405060708090a0b0c0d0e0f"
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{name: "of the root", text: nonce + ".loop.node-cache.", want: true},
		{name: "of a zone", text: nonce + ".loop.node-cache.example.", want: true},
		{name: "below one", text: "a." + nonce + ".loop.node-cache."},
		{name: "without its nonce", text: "loop.node-cache."},
		{name: "with a short nonce", text: nonce[2:] + ".loop.node-cache."},
		{name: "with a long nonce", text: nonce + "00.loop.node-cache."},
		{name: "of others", text: nonce + ".loop.node-cachy."},
		{name: "cut", text: nonce + ".loop."},
		{name: "the root itself", text: "."},
		{name: "labels of other lengths", text: nonce + ".loops.node-cach."},
	} {
		assert.Same(t, tt.name+": IsLoopName", tt.want, wire.IsLoopName(packed(t, tt.text)))
	}
	if wire.IsLoopName(nil) || wire.IsLoopName(bytes.Repeat([]byte{32}, 48)) {
		t.Error("bytes that are no name are taken for one")
	}
}
