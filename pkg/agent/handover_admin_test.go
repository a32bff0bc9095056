// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestHandOverWithAnotherAdminAddress has the next agent's admin server listen on all addresses, on the same port: a request
// to the first one's address, such as the kubelet's probes, must not be answered by the first one.
func TestHandOverWithAnotherAdminAddress(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	cfg.Admin.Address = proctest.FreeAddr(t)
	m1, m2 := newFakeHost(), newFakeHost()
	m2.kernel = m1.kernel
	startHanding(t, m1, cfg)
	asked := "http://" + cfg.Admin.Address.String() + "/readyz"
	cfg.Admin.Address = netip.AddrPortFrom(netip.IPv4Unspecified(), cfg.Admin.Address.Port())
	startHanding(t, m2, cfg)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, asked, http.NoBody)
	assert.NoError(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
	assert.NoError(t, err)
	_ = reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, want the next agent's 200", asked, reply.Status)
	}
}
