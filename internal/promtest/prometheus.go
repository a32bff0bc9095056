// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Prometheus fills a folder of its own with what Prometheus needs to scrape agents and evaluate the alerts, both every
// second, and returns the program's arguments. It then listens at the given address. root is the top of the repository;
// scrapes are those of PodMonitors.
func Prometheus(root, folder string, listen netip.AddrPort, scrapes []any) ([]string, error) {
	rules, err := RuleFile(root)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{ // JSON is YAML too
		"global":         map[string]string{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{"rules.yaml"},
		"scrape_configs": scrapes,
	})
	if err != nil {
		return nil, fmt.Errorf("writing Prometheus' configuration: %w", err)
	}
	for name, data := range map[string][]byte{"rules.yaml": rules, "prometheus.yaml": config} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			return nil, fmt.Errorf("writing Prometheus' configuration: %w", err)
		}
	}
	return []string{
		"--config.file=" + filepath.Join(folder, "prometheus.yaml"),
		"--storage.tsdb.path=" + filepath.Join(folder, "data"),
		"--web.listen-address=" + listen.String(),
		"--log.level=warn",
	}, nil
}
