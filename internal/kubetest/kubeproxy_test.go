// SPDX-License-Identifier: Apache-2.0

package kubetest_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

func TestKubeProxyFollowsServices(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("not root: kube-proxy needs a network namespace")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft: apt-get install nftables")
	}
	c := kubetest.Start(t, kubetest.Options{Audit: true})
	k, err := c.LaunchKubeProxy(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)

	before := k.Traffic()
	kubetest.Apply(t, c, kubetest.Namespace("shop"), service("web"))
	proctest.Eventually(t, limit, "the service is among kube-proxy's rules", func() bool {
		return strings.Contains(tables(t, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", k.PID())), "shop/web:sql")
	})
	if after := k.Traffic(); after.ToClient <= before.ToClient || after.Connections != before.Connections {
		t.Errorf("traffic: got %+v after %+v, want more bytes on the same connection", after, before)
	}
	if own := tables(t, "env"); strings.Contains(own, "shop/web:sql") {
		t.Errorf("the service is among the machine's own rules:\n%s", own)
	}
	requests, err := c.Audit()
	if err != nil {
		t.Fatal(err)
	}
	watched := map[string]bool{}
	for _, r := range requests {
		if r.Agent == "kube-proxy" && r.Verb == "watch" {
			watched[r.Resource] = true
		}
	}
	for _, want := range []string{"services", "endpointslices"} {
		if !watched[want] {
			t.Errorf("kube-proxy does not watch %s, only %v", want, watched)
		}
	}
}

// tables lists all nftables rules, where the command before nft puts it.
func tables(t *testing.T, prefix ...string) string {
	t.Helper()
	out, err := exec.Command(prefix[0], append(prefix[1:], "nft", "list", "ruleset")...).CombinedOutput()
	if err != nil {
		t.Fatalf("listing rules: %v: %s", err, out)
	}
	return string(out)
}
