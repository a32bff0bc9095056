// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
)

// plain compares addresses by what they are.
func plain() cmp.Options {
	return cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateErrors()}
}

// tree makes files, and links from names that end with @, below a new folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path, isLink := strings.CutSuffix(filepath.Join(root, name), "@")
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if isLink {
			err = errors.Join(err, os.Symlink(text, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
		}
		assert.NoError(t, err)
	}
	return root
}

func TestReadKubelet(t *testing.T) {
	t.Parallel()
	const config = "kind: KubeletConfiguration\nclusterDNS: [169.254.20.10, 'fd00::a']\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Kubelet
		bad   bool
	}{
		{name: "none", files: map[string]string{"7/comm": "kube-proxy\n", "7/cmdline": "kube-proxy\x00--cluster-dns=10.96.0.10\x00"}},
		{
			name:  "a flag",
			files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "/usr/bin/kubelet\x00--config=/etc/k.yaml\x00--cluster-dns=10.96.0.10,fd00::1\x00", "7/root/etc/k.yaml": config},
			want:  Kubelet{DNS: []string{"10.96.0.10", "fd00::1"}, From: "its flag --cluster-dns"},
		},
		{
			name:  "its file",
			files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--config\x00/etc/k.yaml\x00--v=2\x00", "7/root/etc/k.yaml": config},
			want:  Kubelet{DNS: []string{"169.254.20.10", "fd00::a"}, From: "clusterDNS in /etc/k.yaml"},
		},
		{
			name:  "a file beside it",
			files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00-config=k.yaml\x00", "7/cwd/k.yaml": "kind: KubeletConfiguration\n"},
			want:  Kubelet{From: "clusterDNS in k.yaml"},
		},
		{name: "flags only", files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--config\x00"}, want: Kubelet{From: "its flags"}},
		{name: "a file that is not there", files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--config=/x\x00"}, bad: true},
		{name: "a file that is none", files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--config=/x\x00", "7/root/x": "{"}, bad: true},
		{name: "one that has ended", files: map[string]string{"7/comm": "kubelet\n"}, bad: true},
	} {
		got := readKubelet(tree(t, tt.files))
		if (got.Err != nil) != tt.bad {
			t.Errorf("%s: error %v, want one: %t", tt.name, got.Err, tt.bad)
		}
		got.Err = nil
		assert.Same(t, tt.name+": readKubelet", tt.want, got)
	}
}

func TestPodResolvers(t *testing.T) {
	t.Parallel()
	const pod = "search default.svc.cluster.local\nnameserver 169.254.20.10\nnameserver 169.254.20.10\n nameserver\tfd00::a # second\noptions ndots:5\n"
	proc := tree(t, map[string]string{
		"self/ns/net@": "net:[1]", "1/ns/net@": "net:[1]", "1/root/etc/resolv.conf": "nameserver 192.0.2.53\n",
		"10/ns/net@": "net:[1]", "10/root/etc/resolv.conf": pod, // of the node's namespace
		"20/ns/net@": "net:[2]", // a sandbox without the file
		"21/ns/net@": "net:[2]", "21/root/etc/resolv.conf": pod,
		"22/ns/net@": "net:[2]", "22/root/etc/resolv.conf": pod, // of the same pod
		"30/ns/net@": "net:[3]", "30/root/etc/resolv.conf": "#nameserver 1.1.1.1\nnameserver 10.96.0.10\n",
		"40/comm": "has no namespace that may be seen",
	})
	for name, target := range map[string]string{"50/ns/net": "net:[5]", "50/root": filepath.Join(proc, "1/root")} {
		path := filepath.Join(proc, name)
		assert.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)))
	}
	got, err := podResolvers(proc, filepath.Join(proc, "self"))
	assert.NoError(t, err)
	assert.Same(t, "podResolvers", map[string]int{"169.254.20.10": 1, "fd00::a": 1, "10.96.0.10": 1}, got)
	if _, err := podResolvers(proc, filepath.Join(proc, "gone")); err == nil {
		t.Error("podResolvers without /proc: no error")
	}
}

func TestConntrackFill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		files map[string]string
		bad   bool
	}{
		{name: "some", files: map[string]string{"nf_conntrack_count": "17\n", "nf_conntrack_max": "262144\n"}},
		{name: "none", bad: true},
		{name: "nonsense", files: map[string]string{"nf_conntrack_count": "x\n"}, bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			count, limit, err := conntrackFill(tree(t, tt.files))
			if (err != nil) != tt.bad || err == nil && (count != 17 || limit != 262144) {
				t.Errorf("%d of %d entries, %v; want an error: %t", count, limit, err, tt.bad)
			}
		})
	}
}

func TestNewPodNet(t *testing.T) {
	t.Parallel()
	got := newPodNet([5]byte{0xFF, 0x12, 0xFF, 0x34, 0x56}, true)
	want := podNet{
		Own:     []netip.Prefix{netip.MustParsePrefix("198.19.18.254/30"), netip.MustParsePrefix("fdff:12ff:3456::2/64")},
		Gateway: []netip.Addr{netip.MustParseAddr("198.19.18.253"), netip.MustParseAddr("fdff:12ff:3456::1")},
		Node:    []byte{2, 1, 0xFF, 0x12, 0xFF, 0x34},
	}
	assert.Same(t, "newPodNet", want, got, plain())
	if v4 := newPodNet([5]byte{}, false); len(v4.Own) != 1 || len(v4.Gateway) != 1 {
		t.Errorf("without IPv6: %v by %v", v4.Own, v4.Gateway)
	}
}

func TestOfIPTables(t *testing.T) {
	t.Parallel()
	for where, want := range map[string]bool{
		"ip filter INPUT": true, "ip6 raw PREROUTING": true, "inet filter input": false, "ip other in": false, "iptables-nft": false,
	} {
		assert.Equal(t, fmt.Sprintf("%q is of iptables", where), want, (Drop{Where: where}).ofIPTables())
	}
}
