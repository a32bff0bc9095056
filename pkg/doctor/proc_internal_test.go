// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
)

// addressOptions compares addresses by what they are.
func addressOptions() cmp.Options {
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

// direct is a [readFunc] that reads in this process.
func direct(_ context.Context, root, path string) (content, error) {
	return (&fileRequest{Root: root, Path: path}).read()
}

// namespaces returns files, which a process of the node has, with others in place of some.
func namespaces(pid string, others map[string]string) map[string]string {
	files := map[string]string{
		pid + "/ns/net@": "net:[1]", pid + "/ns/mnt@": "mnt:[1]", pid + "/ns/pid@": "pid:[1]", pid + "/ns/user@": "user:[1]",
		pid + "/status": "Name:\tx\nUid:\t0\t0\t0\t0\n",
	}
	maps.Copy(files, others)
	return files
}

func TestReadKubelet(t *testing.T) {
	t.Parallel()
	const config = "kind: KubeletConfiguration\nclusterDNS: [169.254.20.10, 'fd00::a']\n"
	byFlag := map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--cluster-dns=10.96.0.10\x00"}
	found := Kubelet{DNS: []string{"10.96.0.10"}, From: "its flag --cluster-dns"}
	for _, tt := range []struct {
		name   string
		files  map[string]string
		others map[string]string // in place of those of a process of the node
		want   Kubelet
		bad    bool
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
			files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00-config=../k.yaml\x00", "7/cwd@": "/etc/kubernetes", "7/root/etc/k.yaml": "kind: KubeletConfiguration\n"},
			want:  Kubelet{From: "clusterDNS in ../k.yaml"},
		},
		{name: "flags only", files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--config\x00"}, want: Kubelet{From: "its flags"}},
		{name: "a file that is not there", files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--config=/x\x00"}, bad: true},
		{name: "a file that is none", files: map[string]string{"7/comm": "kubelet\n", "7/cmdline": "kubelet\x00--config=/x\x00", "7/root/x": "{"}, bad: true},
		{name: "one that has ended", files: map[string]string{"7/comm": "kubelet\n"}, bad: true},
		{name: "in a pod's network", files: byFlag, others: map[string]string{"7/ns/net@": "net:[2]"}},
		{name: "with a container's files, in the host network", files: byFlag, others: map[string]string{"7/ns/mnt@": "mnt:[2]"}},
		{name: "in another PID namespace", files: byFlag, others: map[string]string{"7/ns/pid@": "pid:[2]"}},
		{name: "in a user namespace", files: byFlag, others: map[string]string{"7/ns/user@": "user:[2]"}},
		{name: "of another user", files: byFlag, others: map[string]string{"7/status": "Name:\tUid:\nUid:\t1000\t0\t0\t0\n"}},
		{name: "of a user whose name says root", files: byFlag, others: map[string]string{"7/status": "Name:\tUid: 0 0\nUid:\t1000\t1000\t1000\t1000\n"}},
		{name: "whose namespaces cannot be read", files: byFlag, others: map[string]string{"7/ns/user@": "", "7/ns/user": "a file"}, bad: true},
		{
			name: "after a pod's", want: found,
			files:  map[string]string{"6/comm": "kubelet\n", "6/cmdline": "kubelet\x00--cluster-dns=8.8.8.8\x00", "6/ns/net@": "net:[2]", "6/ns/mnt": "a file"},
			others: byFlag,
		},
	} {
		files := namespaces("1", namespaces("self", namespaces("7", tt.files)))
		maps.Copy(files, tt.others)
		maps.DeleteFunc(files, func(_, target string) bool { return target == "" })
		proc := tree(t, files)
		got := readKubelet(t.Context(), proc, filepath.Join(proc, "self"), direct)
		if (got.Err != nil) != tt.bad {
			t.Errorf("%s: error %v, want one: %t", tt.name, got.Err, tt.bad)
		}
		got.Err = nil
		assert.Same(t, tt.name+": readKubelet", tt.want, got)
	}
}

func TestPodResolvers(t *testing.T) {
	t.Parallel()
	const pod = "search default.svc.cluster.local\nnameserver 169.254.20.10\nnameserver 169.254.20.10\n nameserver\tfd00::a%eth0 # second\noptions ndots:5\n"
	proc := tree(t, map[string]string{
		"self/ns/net@": "net:[1]", "1/ns/net@": "net:[1]", "1/root/etc/resolv.conf@": "/run/resolv.conf", "1/root/run/resolv.conf": "nameserver 192.0.2.53\n",
		"10/ns/net@": "net:[1]", "10/root/etc/resolv.conf": pod, // of the node's namespace
		"20/ns/net@": "net:[2]", "20/ns/mnt@": "mnt:[1]", // a sandbox without the file
		"21/ns/net@": "net:[2]", "21/ns/mnt@": "mnt:[2]", "21/root/etc/resolv.conf": pod,
		"22/ns/net@": "net:[2]", "22/ns/mnt@": "mnt:[3]", "22/root/etc/resolv.conf": pod, // of the same pod
		"30/ns/net@": "net:[3]", "30/root/etc/resolv.conf": "#nameserver 1.1.1.1\nnameserver 10.96.0.10\n",
		"40/comm":    "has no namespace that may be seen",
		"60/ns/net@": "net:[6]", "60/root/etc/resolv.conf": strings.Repeat("nameserver password\n", 9) + "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n",
		"61/ns/net@": "net:[7]", "61/root/etc/resolv.conf/a": "a folder",
	})
	for name, target := range map[string]string{"50/ns/net": "net:[5]", "50/root": filepath.Join(proc, "1/root")} {
		path := filepath.Join(proc, name)
		assert.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)))
	}
	got, err := podResolvers(t.Context(), proc, filepath.Join(proc, "self"), direct)
	assert.Equal(t, "error", "process 61: reading /etc/resolv.conf: not a regular file", fmt.Sprint(err))
	want := map[netip.Addr]int{}
	for _, a := range []string{"169.254.20.10", "fd00::a", "10.96.0.10", "192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		want[netip.MustParseAddr(a)] = 1
	}
	assert.Same(t, "podResolvers", want, got, addressOptions())
	if _, err := podResolvers(t.Context(), proc, filepath.Join(proc, "gone"), direct); err == nil {
		t.Error("podResolvers without /proc: no error")
	}
}

// TestHostilePods counts the reads of pods whose files block: one with 100 processes, and one with as many mount namespaces.
// When the time is over, the others are left out.
func TestHostilePods(t *testing.T) {
	t.Parallel()
	files := map[string]string{"self/ns/net@": "net:[1]", "20001/ns/net@": "net:[4]", "20001/ns/mnt@": "mnt:[4]"}
	for i := range 100 {
		files[fmt.Sprintf("%d/ns/net@", 10001+i)], files[fmt.Sprintf("%d/ns/mnt@", 10001+i)] = "net:[2]", "mnt:[2]"
	}
	for i := range 100 {
		files[fmt.Sprintf("%d/ns/net@", 30001+i)], files[fmt.Sprintf("%d/ns/mnt@", 30001+i)] = "net:[3]", fmt.Sprintf("mnt:[%d]", i)
	}
	proc := tree(t, files)
	var got []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := podResolvers(ctx, proc, filepath.Join(proc, "self"), func(_ context.Context, root, _ string) (content, error) {
		got = append(got, strings.TrimPrefix(root, proc))
		if len(got) == 4 {
			cancel()
		}
		return content{}, errSlow
	})
	assert.Same(t, "reads", []string{"/1/root", "/10001/root", "/20001/root", "/30001/root"}, got)
	assert.Equal(t, "error", "process 10001: it takes longer than 1s", fmt.Sprint(err))
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
	assert.Same(t, "newPodNet", want, got, addressOptions())
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
