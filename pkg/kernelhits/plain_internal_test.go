// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"testing"

	"github.com/nodecache/node-cache/pkg/wire"
)

// FuzzPlain compares the keys of queries with the parser of the process. A query that has a key asks for nothing else.
func FuzzPlain(f *testing.F) {
	const header, www, opt = "\x12\x34\x01\x20\x00\x01\x00\x00\x00\x00\x00", "\x03wWw\x04test\x00\x00\x01\x00\x01", "\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x00"
	for _, seed := range []string{
		header + "\x00" + www,
		header + "\x01" + www + opt,
		header + "\x00" + www + "more",
		header + "\x01" + www + opt + opt,
		header + "\x01" + www + "\x00\x00\x01" + opt[3:],
		header + "\x00\x03www\x04test\x00\x00\x10\x00\x03",
		header + "\x00\x03www\xc8test\x00\x00\x01\x00\x01",
		header + "\x00\x00\x00\x02\x00\x01",
		header + "\x00\xc0\x0c\x00\x01\x00\x01",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, pkt []byte) {
		if !isPlain(pkt) {
			return
		}
		key, nameLen, ok := keyOf(pkt)
		if !ok {
			return
		}
		var q wire.Query
		if rcode := q.Parse(pkt); rcode != wire.RcodeSuccess {
			t.Fatalf("%x: rcode %d", pkt, rcode)
		}
		want := hitsKey{Type: networkOrder(q.Type), NameLen: uint8(len(q.Name()))}
		copy(want.Name[:], q.Name())
		for bit, set := range map[uint8]bool{variantAD: q.AD, variantEDNS: q.EDNS, variantDO: q.DO} {
			if set {
				want.Variant |= bit
			}
		}
		if key != want || nameLen != len(q.Name()) {
			t.Errorf("%x: key %v, want %v", pkt, key, want)
		}
		if len(pkt) != 12+nameLen+4+optLen*int(pkt[11]) {
			t.Errorf("%x: bytes after the last record", pkt)
		}
		if q.Class != wire.ClassIN || !q.RD || q.CD || q.Cookie != nil || q.Subnet != nil || q.TSIG != 0 || q.Keepalive || q.Explain || q.HasSerial {
			t.Errorf("%x: asks for more: %+v", pkt, q.Question)
		}
	})
}
