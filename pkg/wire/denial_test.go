// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestAppendBelowTooLong is a denial whose compression pointers do not reach their
// labels behind a longer name, and one that makes more than a message.
func TestAppendBelowTooLong(t *testing.T) {
	t.Parallel()
	owner := labels("w")
	far := cat(header(flagsAnswer, 1, 0, 0, 3), question(owner, wire.TypeA),
		record(pointer(12), 65280, make([]byte, 16320)), record(labels("ns"), wire.TypeTXT, nil))
	far = append(far, record(pointer(len(far)-14), wire.TypeTXT, nil)...)
	long := cat(header(flagsAnswer, 1, 0, 0, 1), question(owner, wire.TypeA), record(pointer(12), 65280, make([]byte, 65480)))
	for name, msg := range map[string][]byte{"pointer": far, "message": long} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, msg)
			if _, ok := m.AppendDenial(nil, owner, wire.TypeA); !ok {
				t.Error("the message does not even fit as it is")
			}
			buf, ok := m.AppendDenial([]byte("before"), append(bytes.Clone(longName(100)[:99]), owner...), wire.TypeA)
			if ok || string(buf) != "before" {
				t.Errorf("made %t, %d bytes", ok, len(buf))
			}
		})
	}
}

// FuzzAppendBelow moves whatever can be walked below another name: the whole can be
// walked and holds the same records.
func FuzzAppendBelow(f *testing.F) {
	for _, msg := range seedAnswers(f) {
		f.Add(msg, []byte("www"))
		f.Add(cat(msg[:3], []byte{msg[3] | 0x20}, msg[4:]), bytes.Repeat([]byte("a"), 63)) // AD
	}
	f.Fuzz(func(t *testing.T, msg, label []byte) {
		var m wire.Message
		if m.Parse(msg) != nil || m.StripOPT() != nil {
			return
		}
		m.CanonicalizeQuestion()
		denied := m.Raw[12 : questionEnd(m.Raw)-4]
		if len(label) == 0 || len(label) > wire.MaxLabel || 1+len(label)+len(denied) > wire.MaxName {
			return
		}
		name := cat([]byte{byte(len(label))}, label, denied)
		wire.Canonical(name, name)
		before := string(m.Raw)
		buf, ok := m.AppendDenial([]byte("before"), name, wire.TypeTXT)
		if string(buf[:6]) != "before" || string(m.Raw) != before {
			t.Fatalf("%q stands before, or the denial has changed", buf[:6])
		}
		if !ok {
			return
		}
		buf = buf[6:]
		var whole wire.Message
		if err := whole.Parse(buf); err != nil {
			t.Fatalf("the whole cannot be walked: %v\n%x", err, buf)
		}
		if got, want := len(whole.Records), len(m.Records); got != want {
			t.Fatalf("%d records, want %d", got, want)
		}
		if got := buf[12 : questionEnd(buf)-4]; !bytes.Equal(got, name) {
			t.Fatalf("question %q, want %q", got, name)
		}
		var above, below dns.Msg
		if above.Unpack(m.Raw) != nil || below.Unpack(buf) != nil {
			return
		}
		assert.Same(t, "records", lines(above.Answer, above.Ns, above.Extra), lines(below.Answer, below.Ns, below.Extra))
		if below.Question[0].Qtype != dns.TypeTXT || below.AuthenticatedData || below.Rcode != above.Rcode {
			t.Errorf("%v, want TXT, no AD, and rcode %d", &below, above.Rcode)
		}
	})
}
