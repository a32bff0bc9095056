// SPDX-License-Identifier: Apache-2.0

// Command metricsproxy is kube-rbac-proxy, which component metrics-proxy runs.
package main

import (
	"os"

	"github.com/brancz/kube-rbac-proxy/cmd/kube-rbac-proxy/app"
	"k8s.io/component-base/cli"
)

func main() { os.Exit(cli.Run(app.NewKubeRBACProxyCommand())) }
