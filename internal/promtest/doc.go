// SPDX-License-Identifier: Apache-2.0

// Package promtest reads the alerts and the dashboard of daemonset/monitoring for tests.
package promtest
