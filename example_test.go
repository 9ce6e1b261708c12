package queued_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"queued"
)

// An order and the job that mails its receipt: both or neither.
func ExampleEnqueue() {
	placeOrder := func(ctx context.Context, db *sql.DB, id int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (?)", id); err != nil {
			return err
		}
		payload, err := json.Marshal(map[string]int{"order": id})
		if err != nil {
			return err
		}
		if _, err := queued.Enqueue(ctx, tx, queued.NewJob{
			Kind:    "receipt",
			Key:     fmt.Sprintf("receipt-%d", id), // a second receipt for the order is not queued
			Payload: payload,
		}); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = placeOrder
}
