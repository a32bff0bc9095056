// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"testing"

	"github.com/miekg/dns"
)

// FuzzMessage answers arbitrary bytes, and reads them as an answer. Another implementation must be able to read the
// result.
func FuzzMessage(f *testing.F) {
	f.Add(appendQuery(nil, 7, askName))
	answer, err := appendAnswer(nil, appendQuery(nil, 7, askName), "agent")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(answer)
	f.Add(append(answer[:0:0], answer[:len(answer)-3]...))
	f.Fuzz(func(t *testing.T, msg []byte) {
		read(t, msg)
		answer, err := appendAnswer(nil, msg, "server")
		if err != nil {
			return
		}
		var m dns.Msg
		if err := m.Unpack(msg); err != nil {
			return // unreadable input is echoed
		}
		if err := m.Unpack(answer); err != nil {
			t.Fatalf("the answer %x cannot be read: %v", answer, err)
		}
		if name, err := serverName(answer); m.Question[0].Qtype == dns.TypeTXT && (name != "server" || err != nil) {
			t.Errorf("the answer is by %q, %v", name, err)
		}
	})
}

// read compares the server name with what the other implementation reads.
func read(t *testing.T, msg []byte) {
	t.Helper()
	name, err := serverName(msg)
	var m dns.Msg
	if err != nil || m.Unpack(msg) != nil {
		return
	}
	for _, rr := range m.Answer {
		if txt, ok := rr.(*dns.TXT); ok {
			// The other implementation escapes bytes that are not printable.
			if len(txt.Txt) == 0 || len(txt.Txt[0]) < len(name) {
				t.Errorf("answered by %q, want %q", name, txt.Txt)
			}
			return
		}
	}
	t.Errorf("answered by %q, want no server", name)
}
