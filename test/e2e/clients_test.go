// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

func TestGoResolver(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	resolver := net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, a.addr)
		},
	}
	ctx := t.Context()
	for _, source := range []string{"upstream", "cache"} {
		hosts, err := resolver.LookupHost(ctx, "c1.e2e.test.")
		slices.Sort(hosts)
		if diff := cmp.Diff([]string{"192.0.2.10", "2001:db8::10"}, hosts); diff != "" || err != nil {
			t.Errorf("LookupHost from the %s: %v (-want +got):\n%s", source, err, diff)
		}
		cname, err := resolver.LookupCNAME(ctx, "c3.e2e.test.") // of a longer chain Go names the first step or the last
		if err != nil || cname != "host.e2e.test." {
			t.Errorf("LookupCNAME from the %s: %q, %v", source, cname, err)
		}
		mx, err := resolver.LookupMX(ctx, "mail.e2e.test.")
		if err != nil || len(mx) != 2 || mx[0].Host != "mx1.e2e.test." {
			t.Errorf("LookupMX from the %s: %v, %v", source, mx, err)
		}
		texts, err := resolver.LookupTXT(ctx, "big.e2e.test.") // needs a second try over TCP
		if err != nil || len(texts) != bigTexts {
			t.Errorf("LookupTXT from the %s: %d strings, %v, want %d", source, len(texts), err, bigTexts)
		}
		var notFound *net.DNSError
		if _, err := resolver.LookupHost(ctx, "absent.e2e.test."); !errors.As(err, &notFound) || !notFound.IsNotFound {
			t.Errorf("LookupHost of an absent name from the %s: %v, want not found", source, err)
		}
	}
}

// TestLibcResolvers runs getaddrinfo of glibc and of musl as a pod has it: five dots, a search list, port 53.
// Most lookups walk the list through names that do not exist, with A and AAAA asked at once from one socket.
func TestLibcResolvers(t *testing.T) {
	t.Parallel()
	gcc, musl := proctest.FindProgram(t, "gcc", "gcc"), proctest.FindProgram(t, "musl-gcc", "musl-tools")
	proctest.FindProgram(t, "nsd", "nsd")
	if !proctest.InNamespace(t, nodeCache) {
		return
	}
	upstream := startNSDAt(t, netip.MustParseAddrPort("127.0.0.2:53"), mainZone())
	startAgent(t, settings{port: 53, to: []string{upstream.addr}})
	mountOver(t, "/etc/resolv.conf", "nameserver 127.0.0.1\nsearch default.svc.e2e.test svc.e2e.test e2e.test\noptions ndots:5 attempts:1 timeout:5\n")
	mountOver(t, "/etc/nsswitch.conf", "hosts: files dns\n")
	want := []string{
		"web 192.0.2.20 2001:db8::20",                  // the first name of the list
		"host 192.0.2.10 2001:db8::10",                 // the last
		"host.e2e.test 192.0.2.10 2001:db8::10",        // absolute, after the list
		"www.outside.test 198.51.100.1 2001:db8:1::1",  // another zone, after the list
		"www.outside.test. 198.51.100.1 2001:db8:1::1", // no list
		"v4only.e2e.test. 192.0.2.11",                  // one family only
		"absent.outside.test no such name",
	}
	names := make([]string, len(want))
	for i, line := range want {
		names[i], _, _ = strings.Cut(line, " ")
	}
	for libc, compile := range map[string][]string{"glibc": {gcc}, "musl": {musl, "-static"}} {
		lookup := filepath.Join(t.TempDir(), "lookup-"+libc)
		compile = append(compile, "-O1", "-Wall", "-Werror", "-o", lookup, "testdata/lookup.c")
		if out, err := exec.Command(compile[0], compile[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("compiling for %s: %v\n%s", libc, err, out)
		}
		for _, source := range []string{"upstream", "cache"} {
			out, err := exec.CommandContext(t.Context(), lookup, names...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", libc, err, out)
			}
			assert.Same(t, fmt.Sprintf("%s from the %s", libc, source), want, sortedAddresses(string(out)))
		}
	}
}

// sortedAddresses sorts the addresses of each line: their order is the C library's business.
func sortedAddresses(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		addresses := strings.Fields(rest)
		if net.ParseIP(addresses[0]) != nil {
			slices.Sort(addresses)
		}
		lines = append(lines, name+" "+strings.Join(addresses, " "))
	}
	return lines
}
