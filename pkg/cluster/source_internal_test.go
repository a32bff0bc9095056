// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

func TestSourceName(t *testing.T) {
	for _, tt := range []struct {
		name, host string
		cluster    Cluster
		cfg        config.Cluster
		identity   string
		want       string
	}{
		{name: "no source", cfg: config.Cluster{Manifests: "/m"}},
		{name: "a folder", cluster: Cluster{Source: new(watch.Watch)}, cfg: config.Cluster{Manifests: "/m"}, want: "folder /m"},
		{name: "a kubeconfig", cluster: Cluster{Source: new(watch.Watch)}, cfg: config.Cluster{Kubeconfig: "/k"}, want: "API server of /k"},
		{name: "a kubelet", cluster: Cluster{Source: new(watch.Watch)}, identity: config.IdentityKubelet, want: "kubelet"},
		{
			name: "a kubelet and a kubeconfig", cluster: Cluster{Source: new(watch.Watch), Endpoints: new(upstream.Service)},
			cfg: config.Cluster{Kubeconfig: "/k"}, identity: config.IdentityKubelet, want: "API server of /k",
		},
		{name: "a pod", host: "10.96.0.1", cluster: Cluster{Source: new(watch.Watch)}, want: "API server https://10.96.0.1:443"},
		{name: "a pod with IPv6", host: "fd00::1", cluster: Cluster{Source: new(watch.Watch)}, want: "API server https://[fd00::1]:443"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", tt.host)
			t.Setenv("KUBERNETES_SERVICE_PORT", "443")
			assert.Equal(t, "got", tt.want, tt.cluster.sourceName(&config.Config{Cluster: tt.cfg, Pods: config.NodePods{Identity: tt.identity}}))
		})
	}
}
