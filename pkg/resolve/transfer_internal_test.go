// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestAXFRMessageNames fills messages with owners that share any number of labels, of any
// bytes, and reads them back.
func TestAXFRMessageNames(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	pool := []string{"a", "bb", "\x00", ".", "\xff\xc0\x0c", "web-0", "svc", string(bytes.Repeat([]byte{'x'}, 63))}
	domain := []byte("\x07cluster\x05local\x00")
	question := append([]byte("\x07CLUSTER\x05locAL\x00"), 0, 252, 0, 1)
	var p axfrMessage
	var want []string
	p.begin(question)
	for i := range 5000 {
		var owner []byte
		for range random.IntN(5) {
			label := pool[random.IntN(len(pool))]
			if len(owner)+1+len(label)+len(domain) <= wire.MaxName {
				owner = append(append(owner, byte(len(label))), label...)
			}
		}
		record := zone.Record{Owner: append(owner, domain...), Type: wire.TypeA, TTL: uint32(i), Data: []byte{10, 0, byte(i >> 8), byte(i)}}
		if !p.fits(&record) {
			compareAXFRMessage(t, &p, want)
			want = nil
			p.begin(question)
		}
		p.add(&record)
		name, _, err := dns.UnpackDomainName(record.Owner, 0)
		assert.NoError(t, err)
		want = append(want, name)
	}
	compareAXFRMessage(t, &p, want)
}

// compareAXFRMessage reads the message and compares its owners.
func compareAXFRMessage(t *testing.T, p *axfrMessage, want []string) {
	t.Helper()
	msg := p.message()
	if len(msg) > axfrMessageSize-axfrOPTRoom {
		t.Fatalf("a message of %d bytes", len(msg))
	}
	var walked wire.Message
	if err := walked.Parse(msg); err != nil || len(walked.Records) != len(want) {
		t.Fatalf("%d records, want %d: %v", len(walked.Records), len(want), err)
	}
	var m dns.Msg
	assert.NoError(t, m.Unpack(msg))
	var got []string
	for _, rr := range m.Answer {
		got = append(got, dns.CanonicalName(rr.Header().Name)) // the domain is as the client spelled it
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("owners (-want +got):\n%s", diff)
	}
}

// The first record goes in however large it is.
func TestAXFRMessageLargeRecord(t *testing.T) {
	t.Parallel()
	var p axfrMessage
	p.begin([]byte("\x01z\x00\x00\xfc\x00\x01"))
	large := zone.Record{Owner: []byte("\x01a\x01z\x00"), Type: 65280, Data: make([]byte, 2*axfrMessageSize)}
	if !p.fits(&large) {
		t.Error("there is no room in an empty message")
	}
	p.add(&large)
	if p.fits(&zone.Record{Owner: []byte("\x01a\x01z\x00"), Type: wire.TypeA, Data: make([]byte, 4)}) {
		t.Error("there is room behind a record longer than a message")
	}
	var m dns.Msg
	if err := m.Unpack(p.message()); err != nil || len(m.Answer) != 1 {
		t.Errorf("%d records: %v", len(m.Answer), err)
	}
}
