// SPDX-License-Identifier: Apache-2.0

// Command agent is Cilium's agent.
package main

import (
	"github.com/cilium/cilium/daemon/cmd"
	"github.com/cilium/cilium/pkg/hive"
)

func main() { cmd.Execute(cmd.NewAgentCmd(hive.New(cmd.Agent))) }
