// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"strings"
	"testing"
)

func FuzzParseDashed(f *testing.F) {
	for _, s := range []string{
		"10-0-0-1", "10-0-0-01", "256-0-0-1", "--", "--1", "1--", "-1", "1-", "2001-db8--1", "2001-db8--0", "1-2-3-4-5-6-7-8",
		"1-2-3-4-5-6-7--8", "1-2-3-4-5-6-7--", "--ffff-a00-1", "12345--", "1---2", "1--2--3", "", "g--", "A--",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var buf [16]byte
		have := parseDashed([]byte(s), &buf)
		want, err := netip.ParseAddr(strings.ReplaceAll(s, "-", "."))
		if err != nil {
			want, err = netip.ParseAddr(strings.ReplaceAll(s, "-", ":"))
		}
		if err != nil || strings.Trim(s, "0123456789abcdef-") != "" {
			if have != nil {
				t.Errorf("%q: %v, want nothing", s, have)
			}
			return
		}
		if got, ok := netip.AddrFromSlice(have); !ok || got != want.Unmap() {
			t.Errorf("%q: %v, want %s", s, have, want)
		}
		text := string(appendDashed(nil, have))
		if again := parseDashed([]byte(text), &buf); string(again) != string(want.Unmap().AsSlice()) {
			t.Errorf("%q is formatted as %q, which parses as %v", s, text, again)
		}
	})
}
