// SPDX-License-Identifier: Apache-2.0

package nodeservers

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// FuzzParseLink parses files of links. What is written of the result parses to the same, so nothing is misread.
func FuzzParseLink(f *testing.F) {
	for _, text := range []string{
		"", "DNS=10.0.0.2\nDOMAINS=a.test\n", "SERVERS=10.0.0.2:53#a [fe80::1%2]:53\nDEFAULT_ROUTE=no\nDOMAINS=~a ~.\n", "DNS\nDNS==\nDNS_DEFAULT_ROUTE=maybe\n",
		"ROUTE_DOMAINS=b.test\nDNS=::ffff:10.0.0.2\n", "DNS_DEFAULT_ROUTE=yes\nROUTE_DOMAINS=.\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := parseLink(text)
		if !slices.IsSortedFunc(l.servers, netip.Addr.Compare) {
			t.Errorf("servers %v are not sorted", l.servers)
		}
		again := "DEFAULT_ROUTE=" + map[bool]string{true: "yes", false: "no"}[l.all] + "\n"
		if l.domains {
			again += "DOMAINS=x\n"
		}
		for _, a := range l.servers {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("server %v", a)
			}
			if !strings.Contains(text, "DNS=") && !strings.Contains(text, "SERVERS=") {
				t.Errorf("server %v of a file without any", a)
			}
			again += "DNS=" + a.String() + "\n"
		}
		if g := parseLink(again); !slices.Equal(g.servers, l.servers) || g.all != l.all || g.domains != l.domains {
			t.Errorf("%q is read as %+v, and what it says as %+v", text, l, g)
		}
	})
}
