// SPDX-License-Identifier: Apache-2.0

package nodeservers_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/nodeservers"
)

// node writes the files of a node, by path, and returns where they are. The agent has 169.254.20.10, and the DNS Service 10.96.0.10.
func node(t *testing.T, files map[string]string) nodeservers.Config {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		assert.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	}
	own := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10")}
	return nodeservers.Config{
		ResolvConf:        filepath.Join(dir, "etc"),
		SystemdResolvConf: filepath.Join(dir, "systemd"),
		LinkFolders:       []string{filepath.Join(dir, "networkd"), filepath.Join(dir, "resolved")},
		Own:               func(a netip.Addr) bool { return slices.Contains(own, a) },
		Log:               slog.New(slog.DiscardHandler),
	}
}

// text writes a list in one line: the servers, and behind "left" the others, without the reasons' last words.
func text(l nodeservers.List) string {
	words := make([]string, 0, len(l.Servers))
	for _, a := range l.Servers {
		words = append(words, a.String())
	}
	for _, left := range l.Left {
		words = append(words, "left "+left.Server+" ("+left.Reason+")")
	}
	return strings.Join(words, ", ")
}

const (
	split = "asked only for the names of some links"
	two   = "nameserver 10.0.0.2\nnameserver 10.0.0.3\n"
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"a plain resolv.conf", map[string]string{"etc": "search a.test\n" + two + "nameserver 2001:db8::2\n"}, "10.0.0.2, 10.0.0.3, 2001:db8::2"},
		{"the stub of systemd-resolved", map[string]string{"etc": "nameserver 127.0.0.53\n", "systemd": two}, "10.0.0.2, 10.0.0.3"},
		{
			"the stub, and nothing behind it",
			map[string]string{"etc": "nameserver 127.0.0.53\n"},
			"left 127.0.0.53 (a server on this node, which asks others)",
		},
		{"a cloud's metadata address", map[string]string{"etc": "nameserver 169.254.169.254\n"}, "169.254.169.254"},
		{
			"servers that no rule can identify",
			map[string]string{"etc": "nameserver 127.0.0.1\nnameserver ::1\nnameserver 0.0.0.0\nnameserver fe80::1%eth0\nnameserver 224.0.0.1\nnameserver dns\n"},
			"left dns (not an address), left 127.0.0.1 (a server on this node, which asks others), left ::1 (a server on this node, which asks others), " +
				"left 0.0.0.0 (this node), left fe80::1%eth0 (an address that is unique on its link only), left 224.0.0.1 (a multicast address)",
		},
		{
			"the agent, and the cluster's DNS",
			map[string]string{"etc": "nameserver 169.254.20.10\nnameserver 10.96.0.10\nnameserver 10.0.0.2\n"},
			"10.0.0.2, left 169.254.20.10 (an address of the agent or of the cluster's DNS), left 10.96.0.10 (an address of the agent or of the cluster's DNS)",
		},
		{
			"more than three of a family",
			map[string]string{"etc": two + "nameserver 10.0.0.4\nnameserver 10.0.0.5\nnameserver 2001:db8::2\n"},
			"10.0.0.2, 10.0.0.3, 10.0.0.4, 2001:db8::2, left 10.0.0.5 (too many)",
		},
		{"a server twice, also as an IPv4-mapped address", map[string]string{"etc": "nameserver 10.0.0.2\nnameserver ::ffff:10.0.0.2\n"}, "10.0.0.2"},

		{
			"one link, with a search domain",
			map[string]string{"etc": two, "networkd/2": "DNS=10.0.0.2 10.0.0.3\nDOMAINS=ec2.internal\nROUTE_DOMAINS=\n"},
			"10.0.0.2, 10.0.0.3",
		},
		{
			"two links with the same servers",
			map[string]string{
				"etc": two, "networkd/2": "DNS=10.0.0.2 10.0.0.3\nDOMAINS=ec2.internal\n", "networkd/3": "DNS=10.0.0.3 10.0.0.2\nDOMAINS=ec2.internal\n",
			},
			"10.0.0.2, 10.0.0.3",
		},
		{
			"a VPN with a domain for routing only",
			map[string]string{
				"etc": two, "networkd/2": "DNS=10.0.0.2\n", "resolved/7": "# This is private data. Do not parse.\nSERVERS=10.0.0.3\nDOMAINS=~corp.example\n",
			},
			"10.0.0.2, left 10.0.0.3 (" + split + ")",
		},
		{
			"a VPN that is no default route",
			map[string]string{"etc": two, "networkd/2": "DNS=10.0.0.2\n", "networkd/7": "DNS=10.0.0.3\nDNS_DEFAULT_ROUTE=no\n"},
			"10.0.0.2, left 10.0.0.3 (" + split + ")",
		},
		{
			"a VPN that takes all names",
			map[string]string{"etc": two, "networkd/2": "DNS=10.0.0.2\n", "resolved/7": "SERVERS=10.0.0.3\nDOMAINS=~.\n"},
			"10.0.0.2, 10.0.0.3",
		},
		{
			"a link whose domain only its own servers have",
			map[string]string{"etc": two, "networkd/2": "DNS=10.0.0.2\n", "networkd/3": "DNS=10.0.0.3\nDOMAINS=corp.example\n"},
			"10.0.0.2, left 10.0.0.3 (" + split + ")",
		},
		{
			"a link with a domain, beside a server of no link",
			map[string]string{"etc": two, "networkd/3": "DNS=10.0.0.3\nDOMAINS=corp.example\n"},
			"10.0.0.2, left 10.0.0.3 (" + split + ")",
		},
		{
			"a server that a link has at another port",
			map[string]string{"etc": two, "networkd/2": "DNS=10.0.0.3:5353#dns.example\nDNS_DEFAULT_ROUTE=no\n"},
			"10.0.0.2, 10.0.0.3",
		},
		{
			"forms of a server",
			map[string]string{
				"etc":        two + "nameserver 2001:db8::2\nnameserver 2001:db8::3\n",
				"networkd/2": "DNS_DEFAULT_ROUTE=no\nDNS=10.0.0.2%eth0#a.example [2001:db8::2%2]:53 [2001:db8::3]:53%3\n",
			},
			"10.0.0.3, left 10.0.0.2 (" + split + "), left 2001:db8::2 (" + split + "), left 2001:db8::3 (" + split + ")",
		},
		{"an empty resolv.conf", map[string]string{"etc": "options edns0\n"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			list, err := nodeservers.Read(node(t, tt.files))
			assert.NoError(t, err)
			assert.Equal(t, "servers", tt.want, text(list))
		})
	}
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	if _, err := nodeservers.Read(node(t, nil)); err == nil || !strings.Contains(err.Error(), "reading the node's servers") {
		t.Errorf("Read() = %v, want an error about the node's servers", err)
	}
}

// TestFollow changes the files: each other list is reported once, and one that names no server is not.
func TestFollow(t *testing.T) {
	t.Parallel()
	c := node(t, map[string]string{"etc": "nameserver 10.0.0.2\n"})
	got := make(chan string, 8)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		nodeservers.Follow(ctx, c, func(l nodeservers.List) { got <- text(l) })
	}()
	next := func(want string) {
		t.Helper()
		proctest.Eventually(t, time.Minute, "the list "+want, func() bool { return len(got) > 0 })
		assert.Equal(t, "servers", want, <-got)
	}
	write := func(text string) {
		t.Helper()
		assert.NoError(t, errors.Join(os.WriteFile(c.ResolvConf+".new", []byte(text), 0o600), os.Rename(c.ResolvConf+".new", c.ResolvConf)))
	}
	next("10.0.0.2")
	write("# the same\nnameserver 10.0.0.2\n")
	write("# none\n")
	write(two)
	next("10.0.0.2, 10.0.0.3")
	assert.NoError(t, os.Remove(c.ResolvConf))
	assert.NoError(t, os.MkdirAll(c.LinkFolders[1], 0o700))
	assert.NoError(t, os.WriteFile(filepath.Join(c.LinkFolders[1], "7"), []byte("SERVERS=10.0.0.3\nDOMAINS=~corp.example\n"), 0o600))
	write(two)
	next("10.0.0.2, left 10.0.0.3 (" + split + ")")
	cancel()
	<-ended
	assert.Equal(t, "lists that were not expected", 0, len(got))
}
