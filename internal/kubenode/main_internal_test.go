// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// victimFolder is in the environment of a process that runs a cluster until it is killed.
const victimFolder = "KUBENODE_VICTIM"

func TestMain(m *testing.M) {
	if status, mine := Main(); mine {
		os.Exit(status)
	}
	if dir := os.Getenv(victimFolder); dir != "" {
		_, err := Launch(context.Background(), dir, Options{NoCoreDNS: true})
		fmt.Println("launched:", err)
		select {}
	}
	os.Exit(m.Run())
}
