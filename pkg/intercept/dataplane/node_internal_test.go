// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// inNamespace runs body on a thread in a network namespace of its own, which ends with it.
func inNamespace(t *testing.T, body func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may make a network namespace")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = body()
		}
		done <- err
	}()
	assert.NoError(t, <-done)
}

// run runs a program in the namespace of the calling thread.
func run(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs the program %s", p)
		}
	}
}

func addLink(name string) error {
	return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
}

func TestLegacyFingerprint(t *testing.T) {
	t.Parallel()
	needs(t, "iptables-legacy", "ip6tables-legacy")
	inNamespace(t, func() error {
		var errs []error
		for _, v6 := range []bool{false, true} {
			program := map[bool]string{false: "iptables-legacy", true: "ip6tables-legacy"}[v6]
			seen := map[string]bool{}
			for _, change := range [][]string{nil, {"-N", "A"}, {"-A", "A", "-j", "ACCEPT"}, {"-A", "OUTPUT", "-j", "A"}} {
				if change != nil {
					errs = append(errs, run(append([]string{program, "-t", "nat"}, change...)...))
				}
				text, err := LegacyFingerprint(v6, []string{"nat", "raw"})
				if errs = append(errs, err); seen[text] || (text == "") != (change == nil) {
					t.Errorf("%s %v: the fingerprint is %q", program, change, text)
				}
				seen[text] = true
			}
		}
		return errors.Join(errs...)
	})
}

func TestLookAtKernel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		programs []string
		set      [][]string
		link     string
		want     Found
	}{
		{name: "a bare namespace", want: Found{Proxy: None, Backend: BackendNFTables}},
		{
			name: "iptables-nft", programs: []string{"iptables-nft", "ip6tables-nft"},
			set:  [][]string{{"iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES"}, {"ip6tables-nft", "-t", "nat", "-N", "KUBE-SERVICES"}},
			want: Found{Proxy: IPTables, Backend: BackendIPTablesNFT, Evidence: []string{"chain KUBE-SERVICES of iptables-nft for IPv4 and IPv6"}},
		},
		{
			name: "iptables-legacy", programs: []string{"iptables-legacy"},
			set: [][]string{
				{"iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES"},
				{"iptables-legacy", "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES"},
			},
			want: Found{Proxy: IPTables, Backend: BackendIPTablesLegacy, Evidence: []string{"chain KUBE-SERVICES of iptables-legacy for IPv4"}},
		},
		{
			name: "ip6tables-legacy", programs: []string{"ip6tables-legacy"},
			set:  [][]string{{"ip6tables-legacy", "-t", "nat", "-N", "KUBE-SERVICES"}},
			want: Found{Proxy: IPTables, Backend: BackendIPTablesLegacy, Evidence: []string{"chain KUBE-SERVICES of iptables-legacy for IPv6"}},
		},
		{
			name: "only the kubelet's chain", programs: []string{"iptables-legacy"},
			set:  [][]string{{"iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"}},
			want: Found{Proxy: None, Backend: BackendNFTables, Evidence: []string{"a chain of the kubelet in iptables-legacy for IPv4"}},
		},
		{
			name: "nftables", programs: []string{"nft"},
			set:  [][]string{{"nft", "add table ip kube-proxy; add table inet kube-proxy"}},
			want: Found{Proxy: NFTables, Backend: BackendNFTables, Evidence: []string{"table kube-proxy of nftables for IPv4"}},
		},
		{name: "IPVS", link: "kube-ipvs0", want: Found{Proxy: IPVS, Backend: BackendIPTablesNFT, Evidence: []string{"link kube-ipvs0"}}},
		{
			name: "Cilium", link: "cilium_host",
			want: Found{Proxy: Cilium, Early: true, Backend: BackendNFTables, Evidence: []string{"link cilium_host"}, Policies: []string{"Cilium"}},
		},
		{
			name: "Cilium's rules for its proxy only", programs: []string{"iptables-nft"}, link: "cilium_host",
			set: ciliumRaw("iptables-nft",
				"-m mark --mark 0x200/0xf00 -m comment --comment cilium:_NOTRACK_for_proxy_traffic -j CT --notrack",
				"-p udp -m udp --dport 8472 -j CT --notrack", "-s 10.0.0.0/8 -j ACCEPT", "-s 10.0.0.0/8 -j CT --zone 7"),
			want: Found{Proxy: Cilium, Early: true, Backend: BackendNFTables, Evidence: []string{"link cilium_host"}, Policies: []string{"Cilium"}},
		},
		{
			name: "Cilium without conntrack for pods, iptables-nft", programs: []string{"iptables-nft"}, link: "cilium_host",
			set: ciliumRaw("iptables-nft", "-d 10.0.0.0/11 -j CT --notrack", "-s 10.0.0.0/11 -m comment --comment cilium:_NOTRACK_for_pod_traffic -j CT --notrack"),
			want: Found{
				Proxy: Cilium, Early: true, Backend: BackendNFTables, Evidence: []string{"link cilium_host"}, Policies: []string{"Cilium"},
				Untracked: []string{"iptables-nft for IPv4"},
			},
		},
		{
			name: "Cilium without conntrack for pods, iptables-legacy", programs: []string{"iptables-legacy", "ip6tables-legacy"}, link: "cilium_host",
			set: slices.Concat(
				ciliumRaw("iptables-legacy", "-p udp -m udp --dport 8472 -j CT --notrack", "-s 10.0.0.0/11 -j CT --notrack"),
				ciliumRaw("ip6tables-legacy", "-s fd00::a -p udp -m udp --sport 53 -j CT --notrack")),
			want: Found{
				Proxy: Cilium, Early: true, Backend: BackendNFTables, Evidence: []string{"link cilium_host"}, Policies: []string{"Cilium"},
				Untracked: []string{"iptables-legacy for IPv4 and IPv6"},
			},
		},
		{
			name: "Cilium with other rules in iptables-legacy", programs: []string{"iptables-legacy"}, link: "cilium_host",
			set:  ciliumRaw("iptables-legacy", "-m mark --mark 0x200/0xf00 -j CT --notrack", "-s 10.0.0.0/11 -j CT --zone 7", "-d 10.0.0.0/11 -j CT --notrack"),
			want: Found{Proxy: Cilium, Early: true, Backend: BackendNFTables, Evidence: []string{"link cilium_host"}, Policies: []string{"Cilium"}},
		},
		{
			name: "Calico", link: "bpfin.cali",
			want: Found{Proxy: Calico, Early: true, Backend: BackendNFTables, Evidence: []string{"link bpfin.cali"}, Policies: []string{"Calico"}},
		},
		{
			name: "policy engines", programs: []string{"iptables-nft", "iptables-legacy", "nft"},
			set: [][]string{
				{"iptables-nft", "-N", "KUBE-ROUTER-INPUT"}, {"iptables-legacy", "-N", "cali-INPUT"}, {"nft", "add table inet kube-network-policies"},
			},
			want: Found{Proxy: None, Backend: BackendNFTables, Policies: []string{"Calico", "kube-network-policies", "kube-router"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			needs(t, tt.programs...)
			inNamespace(t, func() error {
				for _, line := range tt.set {
					if err := run(line...); err != nil {
						return err
					}
				}
				if tt.link != "" {
					if err := addLink(tt.link); err != nil {
						return err
					}
				}
				before := legacyTables()
				got, err := Find(context.Background(), nil)
				if err != nil {
					return err
				}
				assert.Same(t, "Find", tt.want, got, cmpopts.IgnoreFields(Found{}, "Reason", "Note"))
				if variant, _ := Variant(); got.Proxy == IPTables && variant != got.Backend {
					t.Errorf("the variant is %s, want %s", variant, got.Backend)
				}
				assert.Same(t, "tables of iptables-legacy, before and after", before, legacyTables())
				return nil
			})
		})
	}
}

// ciliumRaw returns commands that add Cilium's chain in raw with these rules.
func ciliumRaw(program string, rules ...string) [][]string {
	list := [][]string{{program, "-t", "raw", "-N", "CILIUM_PRE_raw"}}
	for _, r := range rules {
		list = append(list, append([]string{program, "-t", "raw", "-A", "CILIUM_PRE_raw"}, strings.Fields(r)...))
	}
	return list
}

func TestOnCilium(t *testing.T) {
	t.Parallel()
	inNamespace(t, func() error {
		before, err := OnCilium()
		if err != nil || before {
			t.Errorf("a bare namespace: %t, %v", before, err)
		}
		if err := addLink("cilium_host"); err != nil {
			return err
		}
		after, err := OnCilium()
		if err != nil || !after {
			t.Errorf("with its link: %t, %v", after, err)
		}
		return nil
	})
}

func legacyTables() string {
	v4, _ := os.ReadFile(proc + "/net/ip_tables_names")
	v6, _ := os.ReadFile(proc + "/net/ip6_tables_names")
	return string(v4) + "," + string(v6)
}

// TestAskKubeProxy has a stand-in for kube-proxy listen where the real one does.
func TestAskKubeProxy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, answer, want string }{
		{name: "its mode", answer: "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\niptables", want: "iptables"},
		{name: "another server", answer: "HTTP/1.1 404 Not Found\r\n\r\nnftables"},
		{name: "no HTTP", answer: "220 hello\r\n\r\n 200 nftables"},
		{name: "truncated answer", answer: "HTTP/1.0 200 OK\r\n"},
		{name: "none", answer: ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inNamespace(t, func() error {
				if err := run("ip", "link", "set", "lo", "up"); err != nil {
					return err
				}
				l, err := net.Listen("tcp4", proxyModeAddr)
				if err != nil {
					return err
				}
				asked := make(chan string, 1)
				go func() {
					conn, err := l.Accept()
					if err != nil {
						asked <- err.Error()
						return
					}
					line, _ := bufio.NewReader(conn).ReadString('\n')
					_, _ = io.WriteString(conn, tt.answer)
					_ = conn.Close()
					asked <- line
				}()
				got := proxyMode(context.Background())
				_ = l.Close()
				if line := <-asked; line != "GET /proxyMode HTTP/1.0\r\n" {
					t.Errorf("kube-proxy was asked %q", line)
				}
				assert.Equal(t, "proxyMode()", tt.want, got)
				return nil
			})
		})
	}
}

// TestSocketPrograms puts a program that lets everything pass on a cgroup of its own.
func TestSocketPrograms(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may load programs")
	}
	root, err := cgroup("/proc/self")
	assert.NoError(t, err)
	if root == "" {
		t.Skip("no cgroup of version 2 is mounted")
	}
	parent, child := filepath.Join(root, fmt.Sprintf("dataplane-%d", os.Getpid())), "child"
	if err := os.MkdirAll(filepath.Join(parent, child), 0o700); err != nil {
		t.Skipf("no cgroup can be made: %v", err)
	}
	defer func() { _ = os.Remove(filepath.Join(parent, child)); _ = os.Remove(parent) }()
	above, below := open(t, parent), open(t, filepath.Join(parent, child))
	before, err := programsOf(below)
	assert.NoError(t, err)
	attachPassing(t, above, "cil_sock4_connect")
	after, err := programsOf(below)
	assert.NoError(t, err)
	if want := append(slices.Clone(before), "cil_sock4_connec"[:15]); !cmp.Equal(want, after) {
		t.Errorf("programs of the cgroup below: %q, want %q", after, want)
	}
}

// TestLocalIn fills a map as Cilium's.
func TestLocalIn(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may make maps")
	}
	key := func(family byte, addr ...byte) []byte {
		return append(append(addr, make([]byte, 16-len(addr))...), family, 0, 0, 0)
	}
	host, pod := make([]byte, 48), make([]byte, 48)
	host[8], pod[0], pod[6] = 1, 7, 9
	six := netip.MustParseAddr("fd00::a")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 20, ValueSize: 48, MaxEntries: 8})
	if err != nil {
		t.Skipf("no map can be made: %v", err)
	}
	defer func() { _ = m.Close() }()
	assert.NoError(t, errors.Join(m.Put(key(1, 169, 254, 20, 10), host), m.Put(key(1, 10, 0, 0, 1), pod), m.Put(key(2, six.AsSlice()...), host)))
	want := map[netip.Addr]bool{netip.MustParseAddr("169.254.20.10"): true, six: true, netip.MustParseAddr("10.0.0.1"): false, netip.MustParseAddr("10.0.0.2"): false}
	got, err := localIn(m, slices.Collect(maps.Keys(want)))
	assert.NoError(t, err)
	assert.Same(t, "local", want, got)

	other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 24, ValueSize: 48, MaxEntries: 8})
	assert.NoError(t, err)
	defer func() { _ = other.Close() }()
	if _, err := localIn(other, nil); err == nil || !strings.Contains(err.Error(), "another layout") {
		t.Errorf("a map of another layout: %v", err)
	}
	if _, err := CiliumLocal(t.TempDir(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no map: %v, want %v", err, fs.ErrNotExist)
	}
}

func open(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// attachPassing loads `return 1` and attaches it to what sockets of the cgroup connect to.
func attachPassing(t *testing.T, group *os.File, name string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Skipf("no program can be loaded: %v", err)
	}
	t.Cleanup(func() { _ = p.Close() })
	assert.NoError(t, link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(group.Fd()), Program: p, Attach: ebpf.AttachCGroupInet4Connect}))
}

func TestCgroupPath(t *testing.T) {
	t.Parallel()
	const unified = "22 1 0:5 / /proc rw - proc proc rw\n31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
	for _, tt := range []struct{ name, own, mounts, want string }{
		{name: "a node", own: "0::/system.slice/x.service\n", mounts: unified, want: "/sys/fs/cgroup/system.slice/x.service"},
		{name: "a container", own: "0::/\n", mounts: unified, want: "/sys/fs/cgroup"},
		{name: "a container of the host's view", own: "0::/kubepods/a/b\n", mounts: "31 23 0:26 /kubepods/a /sys/fs/cgroup ro - cgroup2 cgroup rw\n", want: "/sys/fs/cgroup/b"},
		{name: "outside of the mount", own: "0::/../x\n", mounts: "31 23 0:26 /kubepods/a /sys/fs/cgroup ro - cgroup2 cgroup rw\n", want: "/sys/fs/cgroup"},
		{name: "version 1 beside it", own: "4:cpu:/a\n0::/b\n", mounts: "30 23 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" + "31 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", want: "/sys/fs/cgroup/unified/b"},
		{name: "version 1", own: "4:cpu:/a\n", mounts: unified},
		{name: "not mounted", own: "0::/\n", mounts: "22 1 0:5 / /proc rw - proc proc rw\n"},
		{name: "nonsense", own: "0::/\n", mounts: "- cgroup2 \n x - cgroup2 y z\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "cgroupPath()", tt.want, cgroupPath([]byte(tt.own), []byte(tt.mounts)))
		})
	}
}

func TestIPVS(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "ip_vs")
	assert.Equal(t, "ipvs() without a list", -1, ipvs(list))
	text := "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n" +
		"TCP  0A600001:01BB rr \n  -> 0A000001:192B      Masq    1      0          0         \nUDP  0A60000A:0035 rr \nTCP  [fd00:0000:0000:0000:0000:0000:0000:000a]:0035 rr \n"
	assert.NoError(t, os.WriteFile(list, []byte(text), 0o600))
	assert.Equal(t, "ipvs()", 3, ipvs(list))
}

func TestPins(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"tc/globals/cilium_lb4_services_v2", "tc/globals/cali_v4_nat_fe3", "tc/globals/cali_v4_routes", "xdp/other"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o700), os.WriteFile(filepath.Join(root, name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(root, "tc/globals/cilium_lb4_services_v2"), filepath.Join(root, "tc/globals/cali_v4_nat_fe3")}
	assert.Same(t, "pins", want, pins(root))
}
