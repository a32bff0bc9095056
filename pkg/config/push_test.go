// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/config"
)

// Clients may subscribe where the zone is the only source of the cluster's names.
func TestPushClients(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text string
		role config.Role
		want string // part of the error; empty: there is none
	}{
		"a resolver":                   {"push: {clients: [10.0.0.0/16, 'fd00::/64']}", config.Resolver, ""},
		"an agent with a zone":         {"push: {clients: [10.0.0.0/16]}\ncluster: {resolver: local, central: {service: ''}}", config.Agent, ""},
		"an agent that asks others":    {"push: {clients: [10.0.0.0/16]}\ncluster: {resolver: central, central: {service: kube-system/kube-dns}}", config.Agent, "push.clients: a list: needs cluster.resolver: local, which is central"},
		"an agent with another source": {"push: {clients: [10.0.0.0/16]}\ncluster: {resolver: local, central: {service: kube-system/kube-dns}}", config.Agent, "push.clients: a list: not with cluster.central"},
		"no prefix":                    {"push: {clients: [all]}", config.Resolver, "push.clients[0]"},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse([]byte(tt.text), tt.role)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
