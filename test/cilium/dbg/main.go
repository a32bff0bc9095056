// SPDX-License-Identifier: Apache-2.0

// Command dbg is cilium-dbg, which asks Cilium's agent how it is.
package main

import "github.com/cilium/cilium/cilium-dbg/cmd"

func main() { cmd.Execute() }
