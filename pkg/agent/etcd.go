// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/names/etcd"
	"github.com/nodecache/node-cache/pkg/names/skydns"
)

// newEtcd returns the client that reads DNS records from etcd; nil: etcd is not configured.
func newEtcd(cfg *config.Etcd, log *slog.Logger) (*etcd.Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, nil //nolint:nilnil // etcd is optional
	}
	prefix := cfg.Prefix + "/"
	source, err := skydns.New(skydns.Config{Prefix: prefix, Zones: cfg.Zones, Onward: cfg.Fallthrough})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if endpoint := cfg.PlainEndpoint(); endpoint != "" {
		log.Warn("etcd password sent in plain text", "endpoint", endpoint)
	}
	return etcd.New(etcd.Config{
		Endpoints: cfg.Endpoints, Prefix: prefix, CA: cfg.CA, Cert: cfg.Cert, Key: cfg.Key, ServerName: cfg.ServerName,
		User: cfg.User, PasswordFile: cfg.PasswordFile, Source: source, Log: log,
	}), nil
}
