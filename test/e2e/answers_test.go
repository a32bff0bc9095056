// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDigAnswers asks for every kind of answer over both transports, twice each: the first comes from NSD, the
// second from the cache.
func TestDigAnswers(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	soa := []string{"e2e.test. IN SOA ns.e2e.test. hostmaster.e2e.test. 1 3600 600 86400 300"}
	tests := []struct {
		name          string
		args          []string
		want          string // status
		wantAnswer    []string
		wantAuthority []string
	}{
		{name: "A", args: []string{"host.e2e.test", "A"}, want: "NOERROR", wantAnswer: []string{"host.e2e.test. IN A 192.0.2.10"}},
		{name: "AAAA", args: []string{"host.e2e.test", "AAAA"}, want: "NOERROR", wantAnswer: []string{"host.e2e.test. IN AAAA 2001:db8::10"}},
		{
			name: "MX", args: []string{"mail.e2e.test", "MX"}, want: "NOERROR",
			wantAnswer: []string{"mail.e2e.test. IN MX 10 mx1.e2e.test.", "mail.e2e.test. IN MX 20 mx2.e2e.test."},
		},
		{name: "TXT", args: []string{"text.e2e.test", "TXT"}, want: "NOERROR", wantAnswer: []string{`text.e2e.test. IN TXT "hello" "world"`}},
		{
			name: "CNAME chain", args: []string{"c1.e2e.test", "A"}, want: "NOERROR",
			wantAnswer: []string{
				"c1.e2e.test. IN CNAME c2.e2e.test.", "c2.e2e.test. IN CNAME c3.e2e.test.",
				"c3.e2e.test. IN CNAME host.e2e.test.", "host.e2e.test. IN A 192.0.2.10",
			},
		},
		{name: "NXDOMAIN", args: []string{"absent.e2e.test", "A"}, want: "NXDOMAIN", wantAuthority: soa},
		{name: "NODATA", args: []string{"v4only.e2e.test", "AAAA"}, want: "NOERROR", wantAuthority: soa},
		{
			name: "an unknown type", args: []string{"odd.e2e.test", "TYPE65280"}, want: "NOERROR",
			wantAnswer: []string{`odd.e2e.test. IN TYPE65280 \# 4 0A000001`},
		},
		{name: "ANY", args: []string{"host.e2e.test", "ANY", "+notcp"}, want: "NOERROR", wantAnswer: []string{`host.e2e.test. IN HINFO "RFC8482" ""`}},
	}
	for _, tt := range tests {
		for _, transport := range []string{"+notcp", "+tcp"} {
			t.Run(tt.name+" "+transport, func(t *testing.T) {
				t.Parallel()
				for _, source := range []string{"upstream", "cache"} {
					got := dig(t, a.addr, append(slices.Clone(tt.args), transport)...)
					if got.status != tt.want || got.overTCP != (transport == "+tcp") || !got.has("ra") || !got.has("rd") || got.has("tc") {
						t.Errorf("from the %s: status %s, want %s; flags %v, TCP %t\n%s", source, got.status, tt.want, got.flags, got.overTCP, got.raw)
					}
					if diff := cmp.Diff(tt.wantAnswer, got.answer); diff != "" {
						t.Errorf("answer from the %s (-want +got):\n%s", source, diff)
					}
					if tt.wantAuthority != nil {
						if diff := cmp.Diff(tt.wantAuthority, got.authority); diff != "" {
							t.Errorf("authority from the %s (-want +got):\n%s", source, diff)
						}
					}
				}
			})
		}
	}
}

func TestDigBigAnswer(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	want := make([]string, bigTexts)
	for i := range want {
		want[i] = fmt.Sprintf(`big.e2e.test. IN TXT "%03d %s"`, i, strings.Repeat("x", 100))
	}
	for _, source := range []string{"upstream", "cache"} {
		cut := dig(t, a.addr, "big.e2e.test", "TXT", "+notcp", "+ignore", "+bufsize=4096")
		if cut.status != "NOERROR" || !cut.has("tc") || cut.overTCP || len(cut.answer) >= bigTexts {
			t.Errorf("over UDP from the %s: status %s, flags %v, %d records, want a truncated answer", source, cut.status, cut.flags, len(cut.answer))
		}
		whole := dig(t, a.addr, "big.e2e.test", "TXT", "+tcp")
		if diff := cmp.Diff(want, whole.answer); diff != "" || whole.has("tc") {
			t.Errorf("over TCP from the %s: flags %v, answer (-want +got):\n%s", source, whole.flags, diff)
		}
		retried := dig(t, a.addr, "big.e2e.test", "TXT", "+notcp")
		if diff := cmp.Diff(want, retried.answer); diff != "" || !retried.overTCP {
			t.Errorf("after a retry of dig's own: TCP %t, answer (-want +got):\n%s", retried.overTCP, diff)
		}
	}
}

// TestDigCookie has dig judge the agent's cookies (RFC 7873).
func TestDigCookie(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startScripted(t, answerA)}})
	cookie := "0123456789abcdef"
	for range 2 { // the client's own, then the server's
		got := dig(t, a.addr, "cookie.e2e.test", "A", "+cookie="+cookie)
		if got.status != "NOERROR" || !strings.HasPrefix(got.cookie, cookie[:16]) || !strings.HasSuffix(got.cookie, "(good)") {
			t.Errorf("status %s, cookie %q, want the client's, completed\n%s", got.status, got.cookie, got.raw)
		}
		cookie, _, _ = strings.Cut(got.cookie, " ")
	}
}
