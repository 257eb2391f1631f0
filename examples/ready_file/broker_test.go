// A broker for tests in Go: go test examples/ready_file/broker_test.go
package broker

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

type ready struct {
	URL     string `json:"url"`
	Port    int    `json:"port"`
	HTTPURL string `json:"http_url"`
}

// start runs a broker until the end of the test.
func start(t *testing.T) ready {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ready.json")
	command := exec.Command("amqp10broker", "serve", "--port", "0", "--ready-file", file, "--log-level", "warning")
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Signal(os.Interrupt)
		command.Wait()
	})
	for range 600 {
		if content, err := os.ReadFile(file); err == nil {
			var found ready
			if err := json.Unmarshal(content, &found); err != nil {
				t.Fatal(err)
			}
			return found
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the broker did not start")
	return ready{}
}

func TestTheBrokerAcceptsConnections(t *testing.T) {
	broker := start(t)
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", broker.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	connection.Write([]byte("AMQP\x03\x01\x00\x00"))
	header := make([]byte, 4)
	if _, err := connection.Read(header); err != nil || string(header) != "AMQP" {
		t.Fatalf("the broker answered %q, %v", header, err)
	}
}
