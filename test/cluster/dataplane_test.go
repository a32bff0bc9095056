// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/dataplane"
)

// TestDetectKubeProxy inspects nodes with kube-proxy, while it answers and when it does not.
func TestDetectKubeProxy(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	c := kubetest.Start(t, kubetest.Options{Programs: programs})
	kubetest.Apply(t, c, kubetest.Namespace("kube-system"))
	whole := t
	const says, hints = "kube-proxy reports mode ", " for IPv4 and IPv6"
	for _, tt := range []struct {
		name, mode, tools string
		want              dataplane.Found
	}{
		{
			name: "nftables", mode: "nftables",
			want: dataplane.Found{
				Proxy: dataplane.NFTables, Backend: "nftables", Reason: "kube-proxy uses it",
				Evidence: []string{says + "nftables", "table kube-proxy of nftables" + hints},
			},
		},
		{
			name: "iptables-nft", mode: "iptables", tools: "nft",
			want: dataplane.Found{
				Proxy: dataplane.IPTables, Backend: "iptables-nft", Reason: "kube-proxy uses iptables-nft",
				Evidence: []string{says + "iptables", "chain KUBE-SERVICES of iptables-nft" + hints},
			},
		},
		{
			name: "iptables-legacy", mode: "iptables", tools: "legacy",
			want: dataplane.Found{
				Proxy: dataplane.IPTables, Backend: "iptables-legacy", Reason: "kube-proxy uses iptables-legacy",
				Evidence: []string{says + "iptables", "chain KUBE-SERVICES of iptables-legacy" + hints},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			network := nodetest.Start(whole, nodetest.Options{Pods: 1})
			k, err := c.LaunchKubeProxyWith(t.Context(), t.TempDir(), kubetest.KubeProxyOptions{
				Mode: tt.mode, Programs: xtables(t, tt.tools), Enter: network.Node.Enter,
			})
			if err != nil {
				t.Fatal(err)
			}
			// Lab and kube-proxy outlast the others: the thread that ends with it may have started parts of the cluster.
			whole.Cleanup(k.Close)
			expectFound(t, network.Node, tt.want)
			if err := syscall.Kill(k.PID(), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			tt.want.Evidence = tt.want.Evidence[1:] // only its rules tell now
			expectFound(t, network.Node, tt.want)
		})
	}
}

// expectFound waits until what is found is right: kube-proxy says that it is well before it has written a rule.
func expectFound(t *testing.T, h *nodetest.Host, want dataplane.Found) {
	t.Helper()
	diff := ""
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		err := h.Do(func() error {
			got, err := dataplane.Find(t.Context(), dataplane.Config{})
			diff = cmp.Diff(want, got)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff == "" {
			return
		}
	}
	t.Errorf("found (-want +got):\n%s", diff)
}

// xtables is a folder with the programs of one variant of iptables by their usual names; "" for no variant.
func xtables(t *testing.T, variant string) string {
	t.Helper()
	if variant == "" {
		return ""
	}
	tool, err := exec.LookPath("/usr/sbin/xtables-" + variant + "-multi")
	if err != nil {
		t.Skip("no iptables: apt-get install iptables")
	}
	dir := t.TempDir()
	for name := range strings.FieldsSeq("iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore") {
		if err := os.Symlink(tool, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
